"""What the pages show is run: each `surd` line of a shell block and each block of Python, on a small corpus."""

import os
import random
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack, chdir
from pathlib import Path

import pytest
import transformers

from surd.cli import main

agrees = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "learn.py"))["agrees"]
ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
SMALL = "model.d_model=16 model.heads=2 model.d_ff=32 model.encoder_layers=1 model.decoder_layers=1"
SMALL += " training.steps=4 training.evaluate_every=4 decode.factor=1 decode.extra=2"
SMALL_TEXT = "data.context=16 model.d_model=16 model.heads=2 model.d_ff=32 model.decoder_layers=1"
SMALL_TEXT += " training.steps=4 training.evaluate_every=4 sample.max_length=20"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
WORDS = {"two": "zwei", "dogs": "Hunde", "cats": "Katzen", "play": "spielen", "sleep": "schlafen", "in": "im"}
WORDS |= {"the": "", "snow": "Schnee", "house": "Haus", "garden": "Garten", "young": "junge", "old": "alte"}
circles = pytest.mark.filterwarnings("ignore:.* the output went in circles")  # after four steps of training


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def commands(page: Path) -> list[str]:
    """The `surd` lines of a page's shell blocks."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("surd ")]


def run(line: str, folder: Path) -> None:
    """Runs one line; a training is made small, and takes the place of the run of the same name."""
    if out := re.search(r"^surd train .*--out (\S+)", line):
        shutil.rmtree(folder / out[1], ignore_errors=True)
        source, separator, options = line.partition(" --")
        small = SMALL_TEXT if " --text " in line else SMALL
        line = f"{source} {small}{separator}{options}" if ".toml" not in source else f"{line} {small}"
    _, command, *_ = line.split()
    if command in STARTED:
        called(line, folder)
    else:
        STARTED.add(command)
        started(line, folder)


STARTED: set[str] = set()
"""Commands that a shell has started once: to start Python and torch again takes longer than what they do."""


def started(line: str, folder: Path) -> None:
    """As a person starts it."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"


def called(line: str, folder: Path) -> None:
    """The same within this process, with the files that stand behind `<` and `>`."""
    words = shlex.split(line)[1:]
    with chdir(folder), ExitStack() as opened, pytest.MonkeyPatch.context() as patch:
        for sign, stream, mode in (("<", "stdin", "r"), (">", "stdout", "w")):
            if sign in words:
                place = words.index(sign)
                file = opened.enter_context(open(words[place + 1], mode, encoding="utf-8"))
                patch.setattr(sys, stream, file)
                del words[place : place + 2]
        assert main(words) == 0, line


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages name: texts, a recipe, and the run that the README trains."""
    folder = tmp_path_factory.mktemp("pages")
    order = random.Random(1)
    for name, count in (("dev", 20), ("test", 20), ("new", 60), ("train", 200)):
        english = [" ".join(order.sample(sorted(WORDS), 6)) for _ in range(count)]
        german = [" ".join(filter(None, (WORDS[word] for word in line.split()))) for line in english]
        for suffix, lines in (("en", english), ("de", german)):
            (folder / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines))
        pairs = "".join(f"{one}\t{other}\n" for one, other in zip(english, german, strict=True))
        for file in ("pairs.tsv", f"{name}.tsv"):
            (folder / file).write_text(pairs)
    verses = [f"ROMEO: But soft, what {word} through {other}, you know?" for word in WORDS for other in WORDS]
    for name, lines in (("corpus", verses), ("held", verses[::9])):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "net.py").write_text("from surd.audit.specimen import language_model as model\n")
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(vocab_size=300, n_positions=32, n_embd=32, n_layer=2, n_head=2, **ends)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(folder / "gpt2")
    (folder / "recipe.toml").write_text('[data]\nsource = "train.en"\ntarget = "train.de"\n')
    run(next(line for line in commands(PAGES[0]) if line.startswith("surd train")), folder)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
@pytest.mark.usefixtures("compiled")
@circles
def test_every_command_line_of_a_page_works(page: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    for line in commands(page):
        run(line, tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
@pytest.mark.usefixtures("compiled")
@circles
def test_every_block_of_python_of_a_page_works(
    page: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


def test_the_readme_shows_what_a_check_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line and in order, up to the last digit of a number; what is left out is marked."""
    text = PAGES[0].read_text(encoding="utf-8")
    code, shown = re.search(r"^```python\n([^`]*surd\.check[^`]*)```\n\n```text\n(.*?)^```", text, re.M | re.S).groups()
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    printed = iter(capsys.readouterr().out.splitlines())
    lines = [line for line in shown.splitlines() if line != "…"]
    assert len(lines) > 10
    for line in lines:
        assert any(agrees(line, found) for found in printed), line
