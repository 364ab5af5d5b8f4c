"""Run folders of rubbish: a trained run with files missing, cut, flipped, replaced or linked, and what uses it."""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from fuzz import rubbish
from hypothesis import strategies as st
from training.tiny import tiny, write_pairs

import surd
from surd.errors import SurdError
from surd.files import sha256
from surd.run import Run
from surd.run.info import info
from surd.run.translator import Translator
from surd.training.merge import averaged
from surd.training.start import plan, train_new

WORDS = (
    ("model.d_model=16", "model.d_ff=32"),
    (
        "model.d_model=16",
        "model.d_ff=32",
        "tokenizer.joint=true",
        "tokenizer.source.kind=bpe",
        "tokenizer.target.kind=bpe",
        "tokenizer.source.size=270",
        "tokenizer.target.size=270",
    ),
)
"""Settings of the two runs that rubbish is made of: one of characters, one of SentencePiece."""
LENGTH = ("training.steps=4", "training.evaluate_every=2")
EXTRA = (
    "joint.model",
    "tokenizer/joint.json",
    "tokenizer/joint.model",
    "pytorch_model.bin",
    "sitecustomize.py",
    "conftest.py",
    "checkpoints/step-999999/state.json",
    "checkpoints/step-x/state.json",
    "checkpoints/averaging/step-y.safetensors",
    ".model.safetensors.partial",
    "start.safetensors",
    "scores.json",
)
# Unpickled it would make a folder; as source it would too.
HARM = b"cos\nmkdir\n(S'../outside/executed'\ntR."
SOURCE = b"import os\nos.mkdir('../outside/executed')\n"
CONTENTS = (
    b"",
    b"\x00" * 100,
    b"{}",
    b"[]",
    b"null",
    b"{" * 100_000,
    b"[" * 100_000,
    HARM,
    SOURCE,
    b"\xff\xfe",
    b"9" * 5000,
)
LINKS = ("../../outside/precious", "../../outside", "/dev/zero", "/etc/passwd", ".", "nowhere", "loop")


@cache
def model_run(number: int) -> Path:
    """A run that was trained for a moment; made once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="surd-fuzz-"))
    pairs = write_pairs(folder / "pairs.tsv", 60)
    for _ in train_new(plan(tiny(pairs, *WORDS[number], *LENGTH)), folder / "run"):
        pass
    return folder / "run"


@dataclass(frozen=True)
class Remove:
    """A file that is gone."""

    def apply(self, path: Path, root: Path) -> None:
        path.unlink()


@dataclass(frozen=True)
class Cut:
    """A file that ends too soon, or goes on."""

    share: float
    more: bytes

    def apply(self, path: Path, root: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(self.share * len(data))] + self.more)


@dataclass(frozen=True)
class Flip:
    """One bit that is another."""

    share: float
    bit: int

    def apply(self, path: Path, root: Path) -> None:
        data = bytearray(path.read_bytes())
        if data:
            data[int(self.share * (len(data) - 1))] ^= 1 << self.bit
        path.write_bytes(data)


@dataclass(frozen=True)
class Replace:
    """A file with another content."""

    content: bytes

    def apply(self, path: Path, root: Path) -> None:
        path.write_bytes(self.content)


@dataclass(frozen=True)
class Add:
    """A file that does not belong there."""

    name: str
    content: bytes

    def apply(self, path: Path, root: Path) -> None:
        extra = root / self.name
        extra.parent.mkdir(parents=True, exist_ok=True)
        if not extra.is_dir():
            extra.write_bytes(self.content)


@dataclass(frozen=True)
class Link:
    """A link, a folder or a pipe in the place of a file, or of the folder that it lies in."""

    to: str | None
    whole: bool

    def apply(self, path: Path, root: Path) -> None:
        place = path.parent if self.whole and path.parent != root else path
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
        match self.to:
            case None:
                place.mkdir()
            case "pipe":
                os.mkfifo(place)
            case "loop":
                place.symlink_to(place.name)
            case there:
                place.symlink_to(there)


@dataclass(frozen=True)
class Edit:
    """A JSON or TOML file with one value that is another, or missing, or twice."""

    where: int
    value: Any
    how: str

    def apply(self, path: Path, root: Path) -> None:
        text = path.read_bytes().decode("utf-8", "replace")
        if path.suffix == ".json":
            try:
                tree = json.loads(text)
            except (ValueError, RecursionError):
                return
            path.write_text(self._edited(tree), encoding="utf-8", errors="surrogatepass")
        elif path.suffix == ".toml":
            from fuzz.recipes import as_toml

            lines = text.splitlines()
            number = self.where % max(1, len(lines))
            name = lines[number].partition(" = ")[0] if lines else "x"
            lines[number : number + (self.how != "twice")] = (
                [] if self.how == "gone" else [f"{name} = {as_toml(self.value)}"]
            )
            path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")

    def _edited(self, tree: Any) -> str:
        places = list(_places(tree))
        if not places:
            return _dumped(self.value)
        holder, key = places[self.where % len(places)]
        if self.how == "gone":
            del holder[key]
        elif self.how == "twice" and isinstance(holder, dict):
            return _dumped(tree).replace("{", "{" + f"{json.dumps(key)}: {_dumped(self.value)}, ", 1)
        else:
            holder[key] = self.value
        return _dumped(tree)


@dataclass(frozen=True)
class Header:
    """A safetensors file whose header says what its content does not hold."""

    shape: tuple[int, ...]
    offsets: tuple[int, int]
    kind: str
    length: int | None
    every: bool

    def apply(self, path: Path, root: Path) -> None:
        if path.suffix != ".safetensors":
            path = root / "model.safetensors"
        if not path.is_file() or path.is_symlink():
            return
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
        try:
            header = json.loads(data[8 : 8 + size])
        except ValueError:
            return
        names = [name for name in header if name != "__metadata__"]
        for name in names if self.every else names[:1]:
            header[name] = {"dtype": self.kind, "shape": list(self.shape), "data_offsets": list(self.offsets)}
        told = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(told) if self.length is None else self.length) + told + data[8 + size :])


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)


def _dumped(value: Any) -> str:
    if isinstance(value, int) and value > 10**100:
        return "1" + "0" * 400
    return json.dumps(value)


Change = Remove | Cut | Flip | Replace | Add | Link | Edit | Header


@dataclass(frozen=True)
class Folder:
    """A run with changes, checksums made to fit or not, and what it is used for."""

    run: int
    changes: tuple[tuple[str, Change], ...]
    fitting: bool
    use: str

    USES: ClassVar = ("translate", "translate", "translate", "translate", "info", "info", "average", "resume")

    def lay(self, folder: Path) -> Callable[[], object]:
        run = folder / "run"
        shutil.copytree(model_run(self.run), run)
        names = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
        favoured = [name for name in names if not name.startswith(("data/", "checkpoints/"))]
        if self.use == "resume":
            favoured = names
        for where, change in self.changes:
            name = where if where in EXTRA else favoured[int(where) % len(favoured)]
            path = run / name
            if (path.is_file() and not path.is_symlink()) or isinstance(change, Add):
                change.apply(path, run)
        if self.fitting:
            _fit(run)
        return lambda: _used(run, folder / "mean", self.use)


def _used(run: Path, out: Path, use: str) -> None:
    match use:
        case "translate":
            found = surd.load(run)
            assert isinstance(found, Translator)
            (line,) = found.outputs(["abc"], found.decoding())
            assert "\n" not in line.replace("\\n", "")
            line.encode()
        case "info":
            told = info(run)
            from surd.commands.info import as_json, as_lines

            (as_json(told) + as_lines(told)).encode()
        case "average":
            averaged([Run.open(run)], out, None, None)
        case "resume":
            surd.train(resume=run, settings={"training.steps": 5})


def _fit(run: Path) -> None:
    """Makes all checksums those of what lies there: whoever spoils a file on purpose does that too."""
    if not all(path.is_dir() or path.is_file() for path in run.rglob("*") if not path.is_symlink()):
        return  # nobody writes into a pipe
    if any(path.is_symlink() for path in run.rglob("*")):
        return  # a link may lead to what has no end
    for name, key in (("run.json", "files"), ("model.json", "weights")):
        try:
            about = json.loads((run / name).read_bytes())
            held = about[key]
            if key == "weights":
                about[key] = [sha256(run / "model.safetensors")]
            else:
                about[key] = {one: sha256(run / one) if (run / one).is_file() else held[one] for one in held}
            (run / name).write_text(json.dumps(about))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SurdError):
            continue
    for path in run.glob("checkpoints/step-*/state.json"):
        try:
            about = json.loads(path.read_bytes())
            about["files"] = {name: sha256(path.parent / name) for name in about["files"]}
            path.write_text(json.dumps(about))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SurdError):
            continue


values = st.sampled_from(rubbish.VALUES)
shares = st.floats(0, 1)
dimensions = st.sampled_from((0, 1, 16, 10**6, 10**12, 2**62, 2**64))
NAMES = ("../outside/precious", "../../outside/precious", "/dev/zero", "/etc/passwd", "a\x00b", "", ".", "x" * 5000)


@dataclass(frozen=True)
class Names:
    """Files that run.json names: places outside the folder, and what is no file."""

    names: tuple[str, ...]

    def apply(self, path: Path, root: Path) -> None:
        if (root / "run.json").is_symlink() or not (root / "run.json").is_file():
            return  # a change before this one may have made it one that has no end
        try:
            about = json.loads((root / "run.json").read_bytes())
            about["files"] |= {name: "0" * 64 for name in self.names}
            (root / "run.json").write_text(json.dumps(about))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return


changes: st.SearchStrategy[Any] = st.one_of(
    st.just(Remove()),
    st.builds(Cut, shares, st.sampled_from(CONTENTS)),
    st.builds(Flip, shares, st.integers(0, 7)),
    st.builds(Flip, shares, st.integers(0, 7)),
    st.builds(Replace, st.one_of(st.sampled_from(CONTENTS), st.binary(max_size=50))),
    st.builds(Add, st.sampled_from(EXTRA), st.sampled_from(CONTENTS)),
    st.builds(Link, st.sampled_from((None, "pipe", *LINKS)), st.booleans()),
    *[st.builds(Edit, st.integers(0, 500), values, st.sampled_from(("set", "set", "gone", "twice")))] * 4,
    *[
        st.builds(
            Header,
            st.lists(dimensions, max_size=3).map(tuple),
            st.tuples(dimensions, dimensions),
            st.sampled_from(("F32", "F32", "F64", "I64", "BOOL", "C64", "F8_E4M3", "X")),
            st.sampled_from((None, None, None, 0, 2**40, 2**63)),
            st.booleans(),
        )
    ]
    * 2,
    st.builds(Names, st.lists(st.sampled_from(NAMES), min_size=1, max_size=2).map(tuple)),
)

cases: st.SearchStrategy[Folder] = st.builds(
    Folder,
    run=st.sampled_from((0, 1)),
    changes=st.lists(st.tuples(st.integers(0, 60).map(str), changes), min_size=1, max_size=2).map(tuple),
    fitting=st.booleans(),
    use=st.sampled_from(Folder.USES),
)
