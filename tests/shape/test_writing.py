"""All that goes onto a disk goes through `surd.files`, so that a test can stop the writer at any of its calls."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import surd

HOME = "files.py"
FUNCTIONS = {
    "os": {"open", "write", "pwrite", "fsync", "fdatasync", "rename", "renames", "replace", "link", "symlink"}
    | {"sendfile", "copy_file_range", "mkfifo", "mknod"},
    "io": {"open", "FileIO"},
    "shutil": {"copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "make_archive", "unpack_archive"},
    "tempfile": {"TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory"}
    | {"mkstemp", "mkdtemp"},
    "torch": {"save"},
    "np": {"save", "savez", "savez_compressed", "savetxt", "memmap"},
    "json": {"dump"},
    "pickle": {"dump"},
    "tomlkit": {"dump"},
}
"""Functions of modules that write, or make what can be written to; cutting a file short writes nothing."""
METHODS = {"write_text", "write_bytes", "touch", "rename", "hardlink_to", "symlink_to", "tofile", "writelines"}
"""Methods that do so, of paths and arrays."""
ANYWHERE = {"save_file", "memmap"}
"""Functions of libraries that do so, under whatever name their module goes by."""
ALLOWED = {
    ("cli.py", "os.open"): "the null device, in the place of a standard output that is gone",
    ("commands/translate.py", "open"): "the user's output, no run: inside `files.replacing`, and streamed",
    ("data/lines.py", "tempfile.TemporaryFile"): "standard input, to be read twice; it goes again",
    ("interchange/saved.py", "tempfile.TemporaryDirectory"): "a model saved and loaded to be compared; it goes again",
    ("run/writer.py", "tempfile.TemporaryDirectory"): "text that is scored, cut into windows; it goes again",
    ("training/sample.py", "tempfile.TemporaryDirectory"): "a sample of the text, for a time estimate; it goes again",
}
"""Calls that are meant, each with its reason."""


def opens_for_writing(call: ast.Call, places: range, unsure: bool) -> bool:
    """Whether a call of `open` asks for more than reading; its mode may stand at one of those places.

    A mode that is no text in the source counts as that where we are not `unsure` whose `open` it is.
    """
    given = [word.value for word in call.keywords if word.arg == "mode"] + call.args[places.start : places.stop]
    texts = [str(mode.value) for mode in given if isinstance(mode, ast.Constant)]
    return (len(texts) < len(given) and not unsure) or any(
        set(text) <= set("rwaxbt+") and set(text) & set("wax+") for text in texts
    )


def imported(tree: ast.AST) -> dict[str, str]:
    """What the names of a file stand for: `replace` is `os.replace` behind `from os import replace`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname or one.name: "np" if one.name == "numpy" else one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def writing(source: str) -> list[str]:
    """The calls in a file that write, in order."""
    tree = ast.parse(source)
    names = imported(tree)
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Name(id=name):
                module, _, last = names.get(name, name).rpartition(".")
                if module.split(".")[0] == "surd":
                    continue
                if name == "open":
                    found += ["open"] if opens_for_writing(call, range(1, 2), unsure=False) else []
                elif last in FUNCTIONS.get(module, ()):
                    found.append(f"{module}.{last}")
                elif last in ANYWHERE:
                    found.append(last)
            case ast.Attribute(value=value, attr=last):
                module = names.get(value.id, "") if isinstance(value, ast.Name) else ""
                if last in FUNCTIONS.get(module, ()) and not (module == "io" and last == "open"):
                    found.append(f"{module}.{last}")
                elif last in ("open", "fdopen"):
                    found += ["open"] if opens_for_writing(call, range(2), unsure=True) else []
                elif last in METHODS | ANYWHERE:
                    found.append(last)
    return found


def test_nothing_is_written_but_by_the_module_for_it() -> None:
    home = Path(surd.__path__[0])
    found = Counter(
        (path.relative_to(home).as_posix(), call)
        for path in sorted(home.rglob("*.py"))
        for call in writing(path.read_text(encoding="utf-8"))
    )
    del found[(HOME, "os.open")]
    strangers = [place for place in found if place[0] != HOME and place not in ALLOWED]
    assert not strangers, "write it with surd.files, or say here why not"
    assert not [place for place in ALLOWED if place not in found], "an exception that nobody needs any more"


def test_the_module_for_it_writes_in_its_five_functions_alone() -> None:
    tree = ast.parse((Path(surd.__path__[0]) / HOME).read_text(encoding="utf-8"))
    by_function = {
        node.name: calls
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (calls := writing(f"import os\n{ast.unparse(node)}"))
    }
    assert by_function == {
        "open_file": ["os.open"],
        "write": ["os.write"],
        "sync": ["os.fsync"],
        "rename": ["os.replace"],
        "sync_folder": ["os.open", "os.fsync"],
    }


@pytest.mark.parametrize(
    "line",
    [
        "open('a', 'w')",
        "open('a', mode='rb+')",
        "open('a', kind)",
        "Path('a').open('xb')",
        "path.open(mode='a')",
        "gzip.open('a', 'wb')",
        "path.write_text('b')",
        "path.write_bytes(b'b')",
        "path.rename('b')",
        "os.replace('a', 'b')",
        "os.fsync(3)",
        "moved('a', 'b')",
        "shutil.copy('a', 'b')",
        "torch.save({}, 'a')",
        "save_file({}, 'a')",
        "safetensors.torch.save_file({}, 'a')",
        "np.save('a', array)",
        "array.tofile('a')",
        "tempfile.mkstemp()",
    ],
)
def test_a_call_that_writes_is_seen(line: str) -> None:
    imports = "import gzip, os, shutil, tempfile, torch\nimport numpy as np\nfrom os import replace as moved\n"
    assert writing(imports + line)


@pytest.mark.parametrize(
    "line",
    [
        "open('a')",
        "open('a', 'rb')",
        "Path('a').open('rb')",
        "text.replace('a', 'b')",
        "replace(state, step=1)",
        "rename('a', 'b')",
        "lzma.open(file)",
        "Run.open(path)",
        "plan.open('tokenizer')",
    ],
)
def test_a_call_that_only_reads_is_not(line: str) -> None:
    imports = "import lzma\nfrom dataclasses import replace\nfrom surd.files import rename\n"
    assert writing(imports + line) == []
