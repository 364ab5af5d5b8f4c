"""The public functions: `surd.train` makes what `surd.load` opens, from files, settings and recipes."""

import dataclasses
import signal
from pathlib import Path

import pytest

import surd
from surd.errors import Faults, SurdError
from surd.training.events import Evaluated, Finished, Progress

TINY = {
    "training.steps": 4,
    "training.evaluate_every": 2,
    "training.schedule.kind": "inverse_root",
    "training.schedule.warmup": 2,
    "model.d_model": 16,
    "model.heads": 2,
    "model.d_k": 8,
    "model.d_ff": 32,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "decode.beam": 1,
    "decode.factor": 1.0,
    "decode.extra": 2,
}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    words = [first + second + third for first in "abc" for second in "bcd" for third in "aeo"]
    path = tmp_path / "words.tsv"
    path.write_text("".join(f"{word}\t{' '.join(word.upper())}\n" for word in words))
    return path


@pytest.mark.usefixtures("compiled")
def test_train_returns_what_load_opens(pairs: Path, tmp_path: Path) -> None:
    events = []
    translator = surd.train(pairs, out=tmp_path / "run", task="pronunciation", settings=TINY, tell=events.append)
    assert sum(isinstance(event, Progress) for event in events) == 4
    assert sum(isinstance(event, Evaluated) for event in events) == 2
    assert isinstance(events[-1], Finished)
    assert translator.recipe.model.d_model == 16
    again = surd.load(tmp_path / "run")
    assert again.translate(["abe", "", "cdo"]) == translator.translate(["abe", "", "cdo"])

    longer = surd.train(resume=tmp_path / "run", settings={"training.steps": 6})
    assert longer.recipe.training.steps == 6
    assert max(int(path.name[5:]) for path in longer.run.checkpoint_folder.glob("step-*")) == 6

    recipe = dataclasses.replace(translator.recipe, seed=7)
    assert surd.train(recipe, out=tmp_path / "other").recipe == recipe


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "words.tsv"}, "out is missing"),
        ({"out": "run"}, "nothing to train on"),
        ({"source": "words.tsv", "out": "run", "settings": {"model.haeds": 2}}, 'Did you mean "heads"'),
        ({"source": "words.tsv", "out": "run", "settings": {"decode.beam": 0}}, "decode.beam: expected at least 1"),
        ({"source": "word.tsv", "out": "run"}, "words.tsv"),
        ({"source": "words.tsv", "out": "run", "dev": "words.tsv"}, "dev is a list"),
        ({"source": "a.toml", "out": "run", "recipe": "tiny"}, "two recipes"),
        ({"resume": "run", "seed": 3, "out": "new"}, "it does not go with out, seed"),
        ({"resume": "run"}, "no such folder"),
    ],
)
def test_mistakes_leave_nothing_behind(given: dict, message: str, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pairs.parent)
    with pytest.raises(SurdError) as caught:
        surd.train(**given)
    assert message in str(caught.value)
    assert [path.name for path in pairs.parent.iterdir()] == ["words.tsv"]


@pytest.mark.usefixtures("compiled")
def test_ctrl_c_writes_a_checkpoint_first(pairs: Path, tmp_path: Path) -> None:
    def tell(event: object) -> None:
        if isinstance(event, Progress) and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="stopped after update 3; go on with resume="):
        surd.train(pairs, out=tmp_path / "run", task="pronunciation", settings=TINY, tell=tell)
    assert signal.getsignal(signal.SIGINT) is handler
    events: list[object] = []
    surd.train(resume=tmp_path / "run", tell=events.append)
    assert [event.step for event in events if isinstance(event, Progress)] == [4]


def test_a_stop_before_the_first_update_leaves_nothing(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surd.training.start.prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        surd.train(pairs, out=pairs.parent / "run", settings=TINY)
    assert [path.name for path in pairs.parent.iterdir()] == ["words.tsv"]


def test_load_refuses_what_is_no_run(pairs: Path) -> None:
    with pytest.raises(SurdError, match="not the folder of a run"):
        surd.load(pairs)
    with pytest.raises(Faults, match=r"a\.tsv"):
        surd.train("a.tsv", out=pairs.parent / "run")
    assert not (pairs.parent / "run").exists()
