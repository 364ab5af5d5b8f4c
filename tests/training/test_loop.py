"""The loop: when it ends, what it says early on, and what it does when the loss is not a number."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from torch import Tensor
from training.tiny import tiny, write_pairs
from trust.equal import assert_equal

from surd.audit.report.record import SCHEMA
from surd.audit.report.words import looked
from surd.commands.progress import Narrator
from surd.errors import SurdError
from surd.nn.feedforward import FeedForwardLayer
from surd.run import Run
from surd.run.checked import Checked as Told
from surd.run.checked import kept
from surd.run.folder import CHECK
from surd.training import loop, session
from surd.training.checkpoint import Checkpoints, Evaluation
from surd.training.events import Alarmed, Checked, Evaluated, Event, Finished, Progress, Verdict, Weighed
from surd.training.extend import extended
from surd.training.loop import better, train
from surd.training.start import plan, train_new


def run_all(folder: Path, *words: str) -> list[Event]:
    """The events of a whole training in `folder/run`."""
    draft = tiny(write_pairs(folder / "pairs.tsv"), "training.evaluate_every=5", *words)
    return list(train_new(plan(draft), folder / "run"))


@pytest.mark.usefixtures("compiled")
def test_patience_ends_a_training_that_stands_still(tmp_path: Path) -> None:
    events = run_all(tmp_path, "training.steps=500", "training.patience=2", "training.schedule.rate=1e-9")
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.step < 500
    assert "has not improved for 2 evaluations" in finished.why
    looks = [event for event in events if isinstance(event, Evaluated)]
    assert [event.best for event in looks[-2:]] == [False, False]
    verdicts = [event for event in events if isinstance(event, Verdict)]
    assert not any(event.learning for event in verdicts)


@pytest.mark.usefixtures("compiled")
def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_good_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, taken = session.train_step, []

    def broken(*arguments: object) -> object:
        taken.append(step(*arguments))
        return replace(taken[-1], loss=float("nan"), finite=len(taken) < 8)

    monkeypatch.setattr(session, "train_step", broken)
    with pytest.raises(SurdError, match=r"stopped at step 8: the loss is not a number.*checkpoint of step 5 is good"):
        run_all(tmp_path, "training.steps=20")
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [5]


@pytest.mark.usefixtures("compiled")
def test_the_scales_of_the_fresh_model_are_told_first(tmp_path: Path) -> None:
    events = run_all(tmp_path, "training.steps=5", "model.d_model=128", "model.d_ff=256")
    number = next(number for number, event in enumerate(events) if isinstance(event, Weighed))
    assert not any(isinstance(event, Progress) for event in events[:number])
    told = events[number]
    assert isinstance(told, Weighed)
    assert {"source:embed", "projection:logits", "decoder.layers.0.cross.fit:score"} <= {
        entry.site for entry in told.ledger.entries
    }
    assert all(0.7 < (entry.forward.ratio or 1) < 1.4 for entry in told.ledger.entries)
    assert "measured over predicted" in told.ledger.summary()


@pytest.mark.usefixtures("compiled")
def test_the_fresh_model_is_checked_and_a_resumed_one_is_not(tmp_path: Path) -> None:
    events = run_all(tmp_path, "training.steps=5", "training.evaluate_every=5")
    (told,) = [event for event in events if isinstance(event, Checked)]
    assert not any(isinstance(event, Progress) for event in events[: events.index(told)])
    assert told.report is not None and told.report.clean and told.report.trace is not None, told
    assert not told.report.trained and len(told.report.passed) > 20
    run = Run.open(tmp_path / "run")
    jsonschema.validate(json.loads((run.folder / CHECK).read_text()), json.loads(SCHEMA.read_text()))
    assert kept(run) == Told(verdict=f"no faults, no warnings; {looked(told.report).partition('; ')[2]}", findings=())
    again = list(train(extended(run, ["training.steps=10"])))
    assert isinstance(again[-1], Finished) and not any(isinstance(event, Checked) for event in again)


@pytest.mark.usefixtures("compiled")
def test_a_finding_is_told_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = ("model.init.kind=torch", "model.multiplier.kind=none")
    events = run_all(tmp_path, "training.steps=5", *large)
    assert isinstance(events[-1], Finished)
    (told,) = [event for event in events if isinstance(event, Checked)]
    assert told.report is not None and "tied-init-std" in [one.rule for one in told.report.failing]
    with Narrator() as narrator:
        narrator.tell(told)
    assert "\nfault tied-init-std at " in capsys.readouterr().err
    found = kept(Run.open(tmp_path / "run"))
    assert found is not None and any(line.startswith("fault tied-init-std: ") for line in found.findings)
    saved = json.loads((tmp_path / "run" / CHECK).read_text())
    assert {one["file"] for one in saved["findings"]} == {""}


@pytest.mark.usefixtures("compiled")
def test_checking_changes_no_weight_and_a_check_that_fails_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("training.steps=7", "model.attention_dropout=0.1")
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    run_all(tmp_path / "with", *words)

    def failing(*arguments: object, **named: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(loop, "checked", failing)
    events = run_all(tmp_path / "without", *words)
    assert [event.reason for event in events if isinstance(event, Checked)] == ["RuntimeError: on purpose"]
    assert kept(Run.open(tmp_path / "without" / "run")) is None
    assert_equal(tmp_path / "with" / "run", tmp_path / "without" / "run")


@pytest.mark.usefixtures("compiled")
def test_watching_changes_no_weight(tmp_path: Path) -> None:
    weights = []
    for every in (0, 1, 3):
        folder = tmp_path / str(every)
        folder.mkdir()
        run_all(folder, "training.steps=7", f"training.watch_every={every}", "model.attention_dropout=0.1")
        weights.append((folder / "run" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.usefixtures("compiled")
def test_where_a_number_was_lost_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, calls = FeedForwardLayer.forward, []

    def broken(self: FeedForwardLayer, x: Tensor) -> Tensor:
        calls.append(self.training)
        return forward(self, x) * (float("inf") if sum(calls) > 6 and self.training else 1.0)

    monkeypatch.setattr(FeedForwardLayer, "forward", broken)
    with pytest.raises(SurdError, match=r"(?s)is not a number.*came up first at encoder\.layers\.0\.feedforward"):
        run_all(tmp_path, "training.steps=20")


@pytest.mark.usefixtures("compiled")
def test_a_rate_that_tears_the_weights_is_an_alarm(tmp_path: Path) -> None:
    events = run_all(
        tmp_path, "training.steps=6", "training.watch_every=1", "training.schedule.rate=3", "training.schedule.warmup=1"
    )
    kinds = {event.alarm.kind for event in events if isinstance(event, Alarmed)}
    assert "update-ratio" in kinds
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records if record["event"] == "alarm"} == kinds


@pytest.mark.usefixtures("compiled")
def test_the_rate_follows_the_schedule(tmp_path: Path) -> None:
    events = run_all(tmp_path, "training.steps=8", "training.schedule.warmup=2")
    rates = [event.learning_rate for event in events if isinstance(event, Progress)]
    assert rates == [0.005 * min(step / 2, (2 / step) ** 0.5) for step in range(1, 9)]


def test_equal_scores_are_told_apart_by_their_nll() -> None:
    old = Evaluation(step=1, score=0.0, nll=5.0)
    assert better(Evaluation(step=2, score=0.0, nll=4.0), old, higher=True)
    assert not better(Evaluation(step=2, score=0.0, nll=6.0), old, higher=True)
    assert better(Evaluation(step=2, score=-1.0, nll=9.0), old, higher=False)
