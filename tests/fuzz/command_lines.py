"""Command lines of rubbish: options that do not exist or go together, huge numbers, bytes, folders for files."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz import rubbish
from fuzz.folders import model_run
from fuzz.guard import snapshot
from hypothesis import strategies as st

from surd.cli import main
from surd.errors import SurdError

COMMANDS = ("train", "translate", "score", "generate", "info", "average", "trian", "", "--help", "--version")
PLACES = (
    "RUN",
    "RUN/tokenizer",
    "RUN/run.json",
    "PAIRS",
    "RUBBISH",
    "FOLDER",
    "NOWHERE",
    "-",
    "a.toml",
    "",
    ".",
)
OPTIONS = (
    "--out",
    "--dev",
    "--task",
    "--columns",
    "--recipe",
    "--minutes",
    "--seed",
    "--plan",
    "--from",
    "--resume",
    "--text",
    "--beam",
    "--greedy",
    "--n-best",
    "--length-penalty",
    "--batch-tokens",
    "--sample",
    "--temperature",
    "--top-k",
    "--top-p",
    "--prefix",
    "--prefixes",
    "--output",
    "--scores",
    "--align",
    "--column",
    "--json",
    "--with",
    "--prompt",
    "--length",
    "--count",
    "--last",
    "--steps",
    "--nonsense",
    "--help",
    "-x",
    "--",
)
WORDS = (
    "0",
    "1",
    "2",
    "-1",
    "1e9",
    "nan",
    "inf",
    "9" * 30,
    "9" * 5000,
    "x" * 5000,
    "model.d_model=8",
    "model.d_model=" + "9" * 30,
    "seed=" + "[" * 5000,
    "a.b=c",
    "a=" + "x" * 5000,
    "translation",
    "pronunciation",
    "language",
    "1,2",
    "none",
    "\udcff\udcfe",
    "source\udce9.txt",
    "\x1b[31m",
    "\u202e",
    "a\nb",
    "*",
    "~",
)


@dataclass(frozen=True)
class CommandLine:
    """Words behind `surd`, what stands on standard input, and the text in the file RUBBISH."""

    words: tuple[str, ...]
    given: bytes
    rubbish: bytes

    def lay(self, folder: Path) -> Callable[[], object]:
        self.prepare(folder)
        return lambda: self.act(folder)

    def act(self, folder: Path) -> None:
        """The command in this process; what it refuses is refused."""
        status, error = self.in_this_process(folder)
        if told := self.check(status, error):
            raise SurdError(told)

    def prepare(self, folder: Path) -> None:
        (folder / "RUN").symlink_to(model_run(0))
        (folder / "FOLDER").mkdir()
        (folder / "RUBBISH").write_bytes(self.rubbish)
        (folder / "PAIRS").write_bytes(b"".join(b"%d a\ta %d\n" % (number, number) for number in range(12)))

    def arguments(self) -> list[str]:
        """The words; training itself is left out, so that thousands of them can be tried."""
        return [*self.words, *(("--plan",) if self.words[:1] == ("train",) else ())]

    def in_this_process(self, folder: Path) -> tuple[int, str]:
        before = os.getcwd(), sys.stdin, sys.stdout, sys.stderr
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        error = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        os.chdir(folder)
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(self.given)), out, error
        try:
            status = main(self.arguments())
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            error.flush()
            os.chdir(before[0])
            sys.stdin, sys.stdout, sys.stderr = before[1:]
        return status, error.buffer.getvalue().decode()  # type: ignore[attr-defined]

    def in_its_own(self, folder: Path, environment: dict[str, str]) -> str:
        """The same through the real command, with the same checks; how it ended."""
        self.prepare(folder)
        before = snapshot(model_run(0))
        words = [os.fsencode(word) for word in self.arguments()]
        done = subprocess.run(
            [sys.executable, "-m", "surd", *words],
            input=self.given,
            capture_output=True,
            cwd=folder,
            env=environment,
            timeout=120,
        )
        told = self.check(done.returncode, done.stderr.decode())
        assert snapshot(model_run(0)) == before, "a run was changed that was only to be used"
        return told or "done"

    def check(self, status: int, error: str) -> str:
        """Makes sure of a right end, or one message, and gives that message."""
        assert "Traceback" not in error and "bug in surd" not in error, error[-3000:]
        assert status in (0, 1, 2), (status, error[-3000:])
        told = [line for line in error.splitlines() if line.startswith("error: ")]
        assert len(told) == (status == 2), (status, error[-3000:])
        assert not set(error) & set("\x1b\x07\x00\u202e"), "no control characters reach the terminal"
        return "".join(told)


def _tokens(command: str) -> st.SearchStrategy[tuple[str, ...]]:
    places = st.sampled_from(PLACES)
    words = st.one_of(st.sampled_from(WORDS), places, st.text(max_size=10).filter(lambda text: "\x00" not in text))
    option = st.one_of(
        st.tuples(st.sampled_from(OPTIONS), words),
        st.tuples(st.sampled_from(OPTIONS)),
        st.builds(lambda name, word: (f"{name}={word}",), st.sampled_from(OPTIONS), words),
    )
    first = {"train": places, "average": places}.get(command, st.sampled_from(("RUN", "RUN", "RUN", *PLACES)))
    parts = st.lists(st.one_of(option, st.tuples(words)), max_size=3).map(lambda parts: sum(parts, ()))
    return st.builds(lambda place, rest: (command, place, *rest), first, parts)


def joined(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Tokens in a row."""
    return tuple(word for part in parts for word in part)


cases: st.SearchStrategy[CommandLine] = st.builds(
    CommandLine,
    words=st.sampled_from(COMMANDS).flatmap(_tokens),
    given=st.sampled_from((b"", b"abc\n", b"a\xffb\n", b"\x00\n", b"abc\r\n\n\xe2\x80\xa8\n", b'{"source": "a"}\n')),
    rubbish=rubbish.files(2),
)
