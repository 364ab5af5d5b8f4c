"""Training that goes on from another run: what it begins with, what it tells of it, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run.tiny_text import tiny_text_run
from training.tiny import tiny, write_pairs, write_text

from surd.cli import main
from surd.errors import SurdError
from surd.files import load_tensors
from surd.models.weights import weights_of
from surd.recipe import Draft
from surd.run import Run
from surd.run.folder import START
from surd.training.events import Started
from surd.training.loop import train
from surd.training.origin import kept, record
from surd.training.start import plan, train_new

ENDS = ["training.steps=4", "training.evaluate_every=2"]
SOON = ["training.steps=3", "training.evaluate_every=3", "training.schedule.warmup=2", "batch.tokens=512"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learnt a little."""
    folder = tmp_path_factory.mktemp("old")
    list(train_new(plan(tiny(write_pairs(folder / "old.tsv"), *ENDS)), folder / "old"))
    return Run.open(folder / "old")


def asked(source: Path, *words: str) -> Draft:
    """A draft that names its data and nothing of the model."""
    return Draft().with_values({"data.source": str(source)}, "given in a test").with_words([*SOON, *words])


@pytest.mark.usefixtures("compiled")
def test_it_begins_with_the_weights_and_the_vocabulary_and_nothing_else(old: Run, tmp_path: Path) -> None:
    source = write_pairs(tmp_path / "new.tsv", pairs=400)
    events = train_new(plan(asked(source, "model.dropout=0.2"), old), tmp_path / "new")
    started = next(event for event in events if isinstance(event, Started))
    events.close()  # as a kill before the first checkpoint
    new = Run.open(tmp_path / "new")
    trained = load_tensors(old.weights())
    assert all(torch.equal(trained[name], weight) for name, weight in weights_of(new.first_model()).items())
    assert new.about["files"] == old.about["files"]
    assert new.recipe.model == replace(old.recipe.model, dropout=0.2)
    assert (started.step, new.recipe.training.steps) == (0, 3)
    again = list(train(new))
    assert [event.start for event in again if isinstance(event, Started)] == [started.start]
    learnt = load_tensors(new.weights())
    assert not any(torch.equal(learnt[name], tensor) for name, tensor in trained.items() if tensor.ndim > 1)
    (first,) = json.loads((new.folder / "run.json").read_text())["origin"]["runs"]
    assert (new.about["data"], first["run"], first["data"], first["step"]) == (["new.tsv"], "old", ["old.tsv"], 4)
    assert record(new, "its checksum")["origin"] == new.about["origin"]
    (new.folder / START).write_bytes(b"rubbish")
    with pytest.raises(SurdError, match=rf"{START}: damaged"):
        new.first_model()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["model.d_model=64", "tokenizer.source=words"],
            ["model.d_model is 32 there, found 64", "source.kind is char"],
        ),
        (["task=translation"], ["task is transduction there, found translation"]),
        (["model.cap=3.0", "model.init=keras"], ["model.cap is none there", "model.init.kind is transformer there"]),
        (['tokenizer.symbols=["<x>"]'], ["tokenizer.symbols is [] there"]),
    ],
)
def test_what_would_change_the_model_is_refused_in_one_message(
    old: Run, tmp_path: Path, words: list[str], told: list[str]
) -> None:
    with pytest.raises(SurdError) as caught:
        plan(asked(write_pairs(tmp_path / "new.tsv"), *words), old)
    message = str(caught.value)
    assert message.startswith(f"{old.folder}: its task, vocabulary and architecture are kept: ")
    assert "\n" not in message
    assert all(part in message for part in told), message


def test_running_text_is_refused_where_pairs_were_learnt(old: Run, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    with pytest.raises(SurdError, match="task is transduction there, which learns from pairs, found other data"):
        plan(Draft().with_values({"data.text": str(text)}, "test").with_words(SOON), old)


def test_data_that_the_vocabulary_does_not_know_are_told_or_refused(old: Run, tmp_path: Path) -> None:
    foreign = write_pairs(tmp_path / "foreign.tsv", pairs=300, letters="uvwxyz")
    with pytest.raises(SurdError, match=r"100% of the source pieces of .*foreign\.tsv are unknown.*another kind of"):
        plan(asked(foreign), old)
    mixed = write_pairs(tmp_path / "mixed.tsv", pairs=300, letters="abcdex")
    (source, target) = plan(asked(mixed), old).notes
    assert "of the source pieces" in source and "of the target pieces" in target
    assert plan(asked(write_pairs(tmp_path / "known.tsv", pairs=200)), old).notes == ()


def test_what_a_run_leaves_at_none_stays_none(old: Run) -> None:
    derived = replace(old.recipe, model=replace(old.recipe.model, cap=3.0, dropout=0.4))
    assert kept(derived, old).model == replace(old.recipe.model, dropout=0.4)


@pytest.mark.usefixtures("compiled")
def test_a_language_model_goes_on_with_another_text(tmp_path: Path) -> None:
    old = tiny_text_run(tmp_path / "a")
    draft = Draft().with_values({"data.text": str(write_text(tmp_path / "b.txt", 200))}, "given in a test")
    words = ["training.steps=2", "training.evaluate_every=2", "training.schedule.warmup=1", "batch.tokens=256"]
    list(train_new(plan(draft.with_words(words), old), tmp_path / "b"))
    new = Run.open(tmp_path / "b")
    assert (new.recipe.data.context, new.recipe.model) == (12, old.recipe.model)
    assert new.about["origin"]["runs"][0]["data"] == ["text.txt"]


def test_the_command_takes_it_and_refuses_it_with_resume(
    old: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_pairs(tmp_path / "new.tsv", pairs=300)
    assert main(["train", str(source), "--from", str(old.folder), "--plan", *SOON]) == 0
    assert "model.d_model                   32" in capsys.readouterr().out
    assert main(["train", "--resume", str(old.folder), "--from", str(old.folder)]) == 2
    assert "it does not go with --from" in capsys.readouterr().err
    assert main(["train", str(source), "--form", str(old.folder), "--out", str(tmp_path / "x")]) == 2
    assert 'Did you mean "--from"?' in capsys.readouterr().err
