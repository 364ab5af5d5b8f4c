"""Rubbish in: a result or one message out; nothing executed, nothing written elsewhere, no memory lost over it.

Five hundred inputs in this process, and twenty command lines in processes of their own; all are drawn from a seed.
`benchmarks/run_fuzz.py` tries ten thousand and two hundred.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fuzz import command_lines, corpora, folders, guard, recipes
from hypothesis import HealthCheck, given, settings

seeded = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=145,
)


@pytest.fixture(autouse=True, scope="module")
def memory() -> Iterator[None]:
    """All of this costs little memory more than the training of the runs that it is made of."""
    guard.forget_highest()
    folders.model_run(0), folders.model_run(1)
    normal = guard.highest()
    yield
    assert guard.highest() - normal < guard.ROOM


Answer = tuple[int, int]


@pytest.fixture(scope="module")
def surd() -> Iterator[Callable[[Path, list[str]], Answer]]:
    """The real command: exit status and memory."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert server.stdin is not None and server.stdout is not None

    def ask(folder: Path, words: list[str]) -> Answer:
        print(json.dumps([str(folder), words]), file=server.stdin, flush=True)
        status, memory = json.loads(server.stdout.readline())  # type: ignore[union-attr]
        return status, memory

    with server:
        yield ask
        server.stdin.close()


def tried(case: guard.Case) -> str:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return guard.outcome(case, Path(folder))


@seeded
@given(case=corpora.cases)
def test_corpora(case: corpora.Files) -> None:
    tried(case)


@seeded
@given(case=recipes.cases())
def test_recipes(case: recipes.RecipeFile) -> None:
    tried(case)


@settings(seeded, max_examples=65)  # they take the longest
@given(case=folders.cases)
def test_run_folders(case: folders.Folder) -> None:
    tried(case)


@seeded
@given(case=command_lines.cases)
def test_command_lines(case: command_lines.CommandLine) -> None:
    tried(case)


@settings(seeded, max_examples=20)
@given(case=command_lines.cases)
def test_the_real_command(surd: Callable[[Path, list[str]], Answer], case: command_lines.CommandLine) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place) / "here"
        folder.mkdir()
        case.prepare(folder)
        folder.with_name("here.given").write_bytes(case.given)
        before = guard.snapshot(folders.model_run(0))
        status, memory = surd(folder, case.arguments())
        case.check(status, folder.with_name("here.error").read_bytes().decode())
        assert guard.snapshot(folders.model_run(0)) == before, "a run was changed that was only to be used"
        assert memory < guard.highest() + guard.ROOM
