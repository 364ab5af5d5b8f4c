"""Long work through the real command: a disk that refuses, a file that changes, a loss that is no number, Ctrl-C."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training.tiny import WORDS, write_pairs

from surd import files
from surd.cli import main
from surd.commands.progress import Narrator
from surd.training.checkpoint import Checkpoints
from surd.training.events import Preparing, Saved

BEGIN = ["train", "pairs.tsv", "--task", "transduction", "--out", "run", *WORDS]
STEPS = ["training.steps=15", "training.evaluate_every=5"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.tsv")
    return tmp_path


@pytest.fixture
def limited() -> Any:
    """Sets how large a file may become: beyond that the system refuses a write, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def at(monkeypatch: pytest.MonkeyPatch, moment: Callable[[object], bool], act: Callable[[], object]) -> None:
    """Does something at the first event of a training for which `moment` says yes."""
    tell, done = Narrator.tell, []

    def told(self: Narrator, event: Any) -> None:
        tell(self, event)
        if not done and moment(event):
            done.append(act())

    monkeypatch.setattr(Narrator, "tell", told)


def preparing_ids(event: object) -> bool:
    return isinstance(event, Preparing) and "ids" in event.doing


def error(capsys: pytest.CaptureFixture[str]) -> str:
    """The one message of a command that was refused."""
    told = capsys.readouterr().err
    assert "Traceback" not in told and told.count("error: ") == 1
    return told[told.index("error: ") :]


def test_a_disk_that_fills_up_while_data_are_prepared_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, limited: Any
) -> None:
    at(monkeypatch, preparing_ids, lambda: limited(3000))
    assert main([*BEGIN, *STEPS]) == 2
    limited(resource.RLIM_INFINITY)
    assert "file too large. The prepared data cannot be written; nothing of them is left." in error(capsys)
    assert [path.name for path in here.iterdir()] == ["pairs.tsv"]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_refuses_while_training_costs_nothing_but_time(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, limited: Any, how: str
) -> None:
    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    run = here / "run"
    with monkeypatch.context() as patch:
        act = (lambda: limited(1000)) if how == "full" else lambda: patch.setattr(files, "open_file", refuse)
        at(patch, lambda event: isinstance(event, Saved), act)
        assert main([*BEGIN, *STEPS]) == 2
    limited(resource.RLIM_INFINITY)
    message = error(capsys)
    assert ("file too large" if how == "full" else "read-only file system") in message
    assert "The checkpoint of step 5 is good and stays." in message and "surd train --resume run" in message
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000005"]
    assert main(["train", "--resume", "run"]) == 0
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["event"] == "evaluation"] == [5, 10, 15]


@pytest.mark.parametrize("how", ["grows", "shrinks"])
@pytest.mark.parametrize("when", ["first", "second"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str, when: str
) -> None:
    (here / "a").write_text("".join(f"source {n}\n" for n in range(500)))
    target = here / "b"
    target.write_text("".join(f"target {n}\n" for n in range(500)))

    def change() -> None:
        if how == "grows":
            with target.open("a") as file:
                file.write("one more line, and the beginning of ano")
        else:
            os.truncate(target, 3000)

    if when == "second":
        at(monkeypatch, preparing_ids, change)
    else:
        from surd.data import scan

        judge, calls = scan.judge, []

        def judged(*arguments: Any) -> Any:
            calls.append(change() if len(calls) == 100 else None)
            return judge(*arguments)

        monkeypatch.setattr(scan, "judge", judged)
    assert main(["train", "a", "b", "--task", "transduction", "--out", "run", *WORDS, *STEPS]) == 2
    message = error(capsys)
    assert message.startswith("error: b: changed while it was being read (5,390 bytes at first, now ")
    assert len(message.splitlines()) == 1
    assert sorted(path.name for path in here.iterdir()) == ["a", "b", "pairs.tsv"]


@pytest.mark.usefixtures("compiled")
def test_a_loss_that_is_no_number_stops_keeps_the_checkpoint_and_names_the_first_site(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BEGIN, "training.steps=5", "training.evaluate_every=5"]) == 0
    recipe = here / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("rate = 0.005", "rate = 1e30"))
    capsys.readouterr()
    assert main(["train", "--resume", "run", "training.steps=20"]) == 2
    message = error(capsys)
    assert message.startswith("error: training stopped at step 7: the loss is not a number (rate ")
    assert "It came up first at " in message and "The checkpoint of step 5 is good and stays." in message
    assert Checkpoints(here / "run" / "checkpoints").steps() == [5]


@pytest.mark.usefixtures("compiled")
def test_weights_that_are_lost_right_before_an_evaluation_are_not_kept(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["training.steps=9", "training.evaluate_every=1", "training.schedule.rate=1e30"]
    assert main([*BEGIN, *words]) == 2
    message = error(capsys)
    assert message.startswith("error: training stopped at step 2: the loss is not a number (rate ")
    assert "It came up first at " in message and "There is no checkpoint yet." in message
    assert not Checkpoints(here / "run" / "checkpoints").steps()


def test_output_that_cannot_be_written_is_no_bug(here: Path) -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "surd", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (2, "error: standard output: no space left on device\n")
