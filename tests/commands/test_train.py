"""`surd train` as a user meets it: from a file to a model, plans, budgets, Ctrl-C, and what is refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training.tiny import WORDS, write_pairs

import surd
from surd.cli import main
from surd.commands.train import sorted_words
from surd.recipe import read
from surd.training.checkpoint import Checkpoints


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of pairs, to work in."""
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.tsv")
    return tmp_path


def files(folder: Path) -> set[Path]:
    """All that lies in a folder."""
    return set(folder.rglob("*"))


@pytest.mark.usefixtures("compiled")
def test_from_a_file_to_a_model_that_can_do_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(here / "more.tsv", pairs=3000, letters="abcd", longest=4)
    words = [*WORDS, "model.dropout=0.0", "training.steps=300", "training.schedule.warmup=60", "training.average=3"]
    assert main(["train", "more.tsv", "--task", "transduction", "--out", "run", *words]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("accuracy ")
    assert float(told.out.split()[1]) > 90
    for part in ("left out: the same pair again", "(ln V)", "Learning: ", "held-out nll", "surd translate run"):
        assert part.replace("(ln V)", "ln V") in told.err
    assert surd.load("run").translate(["abcd", "", "da"]) == ["dcba", "", "ad"]
    assert main(["train", "pairs.tsv", "--out", "run"]) == 2
    assert "holds another run" in capsys.readouterr().err


def test_a_plan_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(here)
    assert main(["train", "pairs.tsv", "--plan", "--minutes", "1", *WORDS]) == 0
    assert files(here) == before
    told = capsys.readouterr().out
    for part in ("to train on", "model.d_model", "given on the command line", "parameters", "ms an update", "about"):
        assert part in told


@pytest.mark.usefixtures("compiled")
def test_minutes_become_updates_that_stand_in_the_recipe(here: Path) -> None:
    began = time.monotonic()
    assert main(["train", "pairs.tsv", "--out", "run", "--minutes", "0.05", *WORDS]) == 0
    recipe = read(here / "run" / "recipe.toml")
    assert recipe.training.minutes is None
    assert recipe.training.steps is not None
    assert recipe.training.evaluate_every <= recipe.training.steps
    assert "0.05 minutes at" in (here / "run" / "recipe.toml").read_text()
    assert Checkpoints(here / "run" / "checkpoints").steps()[-1] == recipe.training.steps
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_in_a_checkpoint_and_the_line_to_go_on(here: Path, number: signal.Signals) -> None:
    settings = [*WORDS, "training.steps=100000", "training.evaluate_every=5", "training.schedule.warmup=1"]
    command = [sys.executable, "-m", "surd", "train", "pairs.tsv", "--out", "run", *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 1/"):
                break
        process.send_signal(number)
        told = process.stderr.read()
    assert process.returncode == 130, told
    assert "go on with: surd train --resume run" in told
    checkpoints = Checkpoints(here / "run" / "checkpoints")
    stopped = checkpoints.steps()[-1]
    assert main(["train", "--resume", "run", f"training.steps={stopped + 7}"]) == 0
    assert checkpoints.steps()[-1] == stopped + 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pairs.tsv"], "--out is missing"),
        (["--out", "run"], "nothing to train on"),
        (["--out", "run", "--dev", "pairs.tsv"], "all files between --dev and the next option"),
        (["pairs.tsv", "b", "c", "--out", "run"], "found 3"),
        (["pairs.tzv", "--out", "run"], "pairs.tsv"),
        (["pairs.tsv", "--out", "run", "--recipe", "tinny"], 'Did you mean "tiny"'),
        (["pairs.tsv", "--out", "full"], "not empty"),
        (["--resume", "full"], "not a run"),
        (["pairs.tsv", "--resume", "full", "--seed", "3"], "does not go with files, --seed"),
        (["pairs.tsv", "--out", "run", "model.hedas=4"], "heads"),
        (["pairs.tsv", "--out", "run", "--minutes", "3", "training.steps=5"], "training.minutes"),
        (["four.toml", "--out", "run"], "training.clip"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (here / "full").mkdir()
    (here / "full" / "note.txt").write_text("mine")
    (here / "four.toml").write_text(
        'task = "transduction"\n[data]\nsource = "pairs.tsv"\n[model]\nheads = "eight"\n'
        "[batch]\ntokens = 0\n[training]\nclipp = 1\nsteps = -5\n"
    )
    before = files(here)
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert files(here) == before


def test_settings_and_files_are_told_apart(here: Path) -> None:
    (here / "a=b").write_text("a file with an odd name")
    assert sorted_words(["pairs.tsv", "a=b", "model.heads=4", "-"]) == (["pairs.tsv", "a=b", "-"], ["model.heads=4"])
