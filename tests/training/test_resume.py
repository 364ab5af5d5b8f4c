"""A training that was stopped and taken up again is the training that was never stopped, to the last bit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from training.tiny import TORN, tiny, tiny_text, write_pairs, write_text
from trust.equal import assert_equal

from surd.errors import SurdError
from surd.files import load_tensors
from surd.optim.schedule import Cosine
from surd.recipe import Draft
from surd.run import Run
from surd.training.checkpoint import Checkpoints
from surd.training.events import Alarmed, Evaluated, Event, Finished, Interrupted, Progress, Started
from surd.training.extend import extended
from surd.training.loop import train
from surd.training.start import plan, train_new

SETTINGS = ("training.steps=20", "training.evaluate_every=8", "training.accumulation=2")


class Sitting:
    """Collects the events of a training, and asks it to stop after the update `last`."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.events = last, []

    def stop(self) -> bool:
        """Whether the update has come after which the user had enough."""
        steps = [event.step for event in self.events if isinstance(event, Progress)]
        return self.last is not None and bool(steps) and steps[-1] >= self.last

    def watch(self, events: Iterator[Event]) -> "Sitting":
        """Runs to the end."""
        for event in events:
            self.events.append(event)
        return self

    def of(self, kind: type) -> list:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def new(folder: Path, out: str, *words: str, last: int | None = None) -> Sitting:
    """A new training in `folder/out`."""
    source = folder / "pairs.tsv"
    if not source.exists():
        write_pairs(source)
    sitting = Sitting(last)
    return sitting.watch(train_new(plan(tiny(source, *SETTINGS, *words)), folder / out, sitting.stop))


def new_text(folder: Path, out: str, *words: str, last: int | None = None) -> Sitting:
    """A new training of a language model in `folder/out`."""
    text = folder / "text.txt"
    if not text.exists():
        write_text(text)
    sitting = Sitting(last)
    return sitting.watch(train_new(plan(tiny_text(text, *SETTINGS, *words)), folder / out, sitting.stop))


def more(run: Path, last: int | None = None) -> Sitting:
    """The training in that folder taken up again."""
    sitting = Sitting(last)
    return sitting.watch(train(Run.open(run), sitting.stop))


def dropped(events: Iterator[Event], after: int) -> None:
    """Runs to that update, and ends there as by a kill: nothing is saved on the way out."""
    for event in events:
        if isinstance(event, Progress) and event.step == after:
            break
    events.close()


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The weights after an update."""
    return load_tensors(Checkpoints(run / "checkpoints").weights(step))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("begin", [new, new_text], ids=["pairs", "running text"])
def test_stopping_and_going_on_changes_no_bit(begin: Callable[..., Sitting], tmp_path: Path) -> None:
    straight = begin(tmp_path, "straight")
    stopped = begin(tmp_path, "stopped", last=10)
    assert [event.step for event in stopped.of(Interrupted)] == [10]
    assert Checkpoints(tmp_path / "stopped" / "checkpoints").steps() == [8, 10]
    moved = (tmp_path / "stopped").rename(tmp_path / "moved")
    resumed = more(moved, last=13)
    assert [event.step for event in resumed.of(Started)] == [10]
    resumed = more(moved)

    for step in (16, 20):
        expected, found = weights(tmp_path / "straight", step), weights(moved, step)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    for kind in (Progress, Evaluated):
        ends = [[(one.step, one.nll) for one in sitting.of(kind)][-1] for sitting in (straight, resumed)]
        assert ends[0] == ends[1]
    assert straight.of(Finished)[0].scores == resumed.of(Finished)[0].scores
    assert straight.of(Finished)[0].chosen == resumed.of(Finished)[0].chosen
    assert (tmp_path / "straight" / "model.safetensors").read_bytes() == (moved / "model.safetensors").read_bytes()


def dropped_and_equal(draft: Draft, folder: Path, after: int) -> Sitting:
    """A whole training, once it is shown that another one, dropped after that update, comes to the same bits."""
    planned = plan(draft)
    straight = Sitting().watch(train_new(planned, folder / "straight"))
    dropped(train_new(planned, folder / "dropped"), after)
    more(folder / "dropped")
    assert_equal(folder / "straight", folder / "dropped")
    return straight


@pytest.mark.usefixtures("compiled")
def test_a_pending_early_stop_comes_at_the_same_update_and_no_alarm_is_told_twice(tmp_path: Path) -> None:
    straight = dropped_and_equal(tiny(write_pairs(tmp_path / "pairs.tsv"), *TORN), tmp_path, after=8)
    assert [event.waited for event in straight.of(Evaluated)] == [0, 1, 2, 3]
    assert "has not improved for 3 evaluations" in straight.of(Finished)[0].why
    assert min(event.alarm.step for event in straight.of(Alarmed)) < 6  # the update that it goes on from


@pytest.mark.usefixtures("compiled")
def test_running_text_in_bf16_goes_on_over_the_end_of_an_epoch(tmp_path: Path) -> None:
    words = ["training.steps=8", "training.evaluate_every=4", "training.accumulation=3", "training.precision=bf16"]
    straight = dropped_and_equal(tiny_text(write_text(tmp_path / "text.txt"), *words), tmp_path, after=7)
    assert straight.of(Progress)[3].epoch < 1 < straight.of(Progress)[6].epoch


@pytest.mark.usefixtures("compiled")
def test_a_stop_during_an_evaluation_repeats_it(tmp_path: Path) -> None:
    source = write_pairs(tmp_path / "pairs.tsv")
    sitting, asked = Sitting(), []

    def stop() -> bool:
        """Yes, once the evaluation after update 8 has begun."""
        at_8 = bool(sitting.of(Progress)) and sitting.of(Progress)[-1].step == 8
        asked.append(at_8)
        return sum(asked) > 2

    sitting.watch(train_new(plan(tiny(source, *SETTINGS)), tmp_path / "run", stop))
    assert [event.step for event in sitting.of(Interrupted)] == [8]
    assert not sitting.of(Evaluated)
    assert [event.step for event in more(tmp_path / "run").of(Evaluated)] == [8, 16, 20]


@pytest.mark.usefixtures("compiled")
def test_a_finished_training_scores_the_same_again_and_can_be_extended(tmp_path: Path) -> None:
    first = new(tmp_path, "run")
    again = more(tmp_path / "run")
    assert not again.of(Progress)
    assert again.of(Finished)[0].scores == first.of(Finished)[0].scores
    run = extended(Run.open(tmp_path / "run"), ["training.steps=24"])
    sitting = Sitting()
    sitting.watch(train(run))
    assert [event.step for event in sitting.of(Progress)] == [21, 22, 23, 24]
    assert "changed when" in (tmp_path / "run" / "recipe.toml").read_text()


@pytest.mark.usefixtures("compiled")
def test_a_cosine_ends_where_it_was_to_end(tmp_path: Path) -> None:
    cosine = "training.schedule={kind='cosine', rate=1e-3, warmup=2, floor=0.1}"
    straight = new(tmp_path, "run", cosine, last=10)
    resumed = Sitting()
    resumed.watch(train(extended(Run.open(tmp_path / "run"), ["training.steps=22"])))
    rates = [event.learning_rate for sitting in (straight, resumed) for event in sitting.of(Progress)]
    assert rates == pytest.approx([Cosine(rate=1e-3, warmup=2, floor=0.1)(n, 20, 1) for n in range(1, 23)])
    new(tmp_path, "to zero", cosine.replace("0.1", "0"), last=3)
    with pytest.raises(SurdError, match="falls to a rate of 0 at update 20"):
        extended(Run.open(tmp_path / "to zero"), ["training.steps=22"])


@pytest.mark.usefixtures("compiled")
def test_nothing_else_changes_on_the_way(tmp_path: Path) -> None:
    new(tmp_path, "run", last=3)
    with pytest.raises(SurdError, match=r"cannot change model\.d_model, training\.clip"):
        extended(Run.open(tmp_path / "run"), ["training.clip=3", "model.d_model=64", "training.steps=9"])


@pytest.mark.usefixtures("compiled")
def test_the_journal_has_each_update_once(tmp_path: Path) -> None:
    new(tmp_path, "run", last=10)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as journal:
        journal.write('{"event": "update", "step": 11}\n{"event": "upd')  # what a kill after the checkpoint leaves
    more(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["event"] == "update"]
    assert steps == [10, 20]


@pytest.mark.parametrize("begin", [new, new_text], ids=["pairs", "text"])
def test_prepared_text_with_a_token_of_no_vocabulary_is_refused(begin: Callable[..., Sitting], tmp_path: Path) -> None:
    begin(tmp_path, "run", last=2)
    for path in (tmp_path / "run" / "data").glob("*.ids"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(SurdError, match=r"damaged, it has a token 65,535 where the vocabulary has"):
        list(train(Run.open(tmp_path / "run")))


def test_a_damaged_list_of_starts_is_one_message(tmp_path: Path) -> None:
    new(tmp_path, "run", last=2)
    for path in (tmp_path / "run" / "data").glob("train.*.starts"):
        numbers = bytearray(path.read_bytes())
        numbers[len(numbers) // 16 * 8 + 7] ^= 1 << 6  # a start in the middle lies behind all tokens
        path.write_bytes(numbers)
    with pytest.raises(SurdError, match="a sequence ends before it begins or behind all tokens"):
        list(train(Run.open(tmp_path / "run")))
