"""Checkpoints: what is kept, what is refused, and that nothing half-written counts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from surd.errors import SurdError
from surd.files import load_tensors
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.optim.optimizer import AdamW
from surd.training.average import average
from surd.training.checkpoint import Checkpoints, Evaluation, State

ARCHITECTURE = Architecture(d_model=8, heads=2, d_k=4, d_ff=16, encoder_layers=1, decoder_layers=1)


@pytest.fixture
def model() -> Seq2Seq:
    """A model with one shared table."""
    return Seq2Seq(ARCHITECTURE, 12, 12)


def stepped(model: Seq2Seq) -> torch.optim.Optimizer:
    """An optimiser that has made a step."""
    optimizer = AdamW().build(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    return optimizer


def evaluated(step: int, best: Evaluation | None = None, recent: tuple[Evaluation, ...] = ()) -> State:
    """The state after an evaluation that was not the best, unless there was none before."""
    now = Evaluation(step=step, score=1.0, nll=2.0)
    return State(step=step, evaluated=step, best=best or now, recent=(*recent, now)[-2:])


def test_all_of_it_comes_back(model: Seq2Seq, tmp_path: Path) -> None:
    optimizer, checkpoints = stepped(model), Checkpoints(tmp_path)
    state = State(step=7, epoch=2, batches=3, window=(1.5, 0.1 + 0.2, 11), start=9.25, setting={"threads": "2"})
    written = checkpoints.save(state, model, optimizer)
    drawn = torch.rand(3)
    other = Seq2Seq(ARCHITECTURE, 12, 12)
    fresh = AdamW().build(other)
    assert checkpoints.restore(7, other, fresh) == written == state
    assert torch.equal(torch.rand(3), drawn)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for key, value in optimizer.state[mine].items():
            assert torch.equal(value, fresh.state[theirs][key])
    other.verify_ties()


def test_a_shared_table_is_stored_once(model: Seq2Seq, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(State(step=1), model, stepped(model))
    stored = sum(tensor.numel() for tensor in load_tensors(checkpoints.weights(1)).values())
    assert stored == sum(weight.numel() for weight in model.parameters())


def test_the_newest_stay_in_full_and_the_weights_that_are_still_wanted(model: Seq2Seq, tmp_path: Path) -> None:
    optimizer, checkpoints = stepped(model), Checkpoints(tmp_path, keep=2)
    state = checkpoints.save(evaluated(1), model, optimizer)
    for step in range(2, 7):
        state = checkpoints.save(evaluated(step, state.best, state.recent), model, optimizer)
    assert checkpoints.steps() == [5, 6]
    bare = {path.name for path in (tmp_path / "averaging").iterdir()}
    assert bare == {"step-000001.safetensors", "step-000004.safetensors"}  # the best, and what step 5 averages
    assert {path.name for path in tmp_path.iterdir()} == {"averaging", "step-000005", "step-000006"}
    assert all(checkpoints.weights(one.step).exists() and one.sha256 for one in state.recent)


def test_a_checkpoint_written_again_takes_the_place_of_the_first(model: Seq2Seq, tmp_path: Path) -> None:
    optimizer, checkpoints = stepped(model), Checkpoints(tmp_path)
    checkpoints.save(State(step=4), model, optimizer)
    checkpoints.save(replace(State(step=4), waited=3), model, optimizer)
    assert checkpoints.read(4).waited == 3
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004"]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
def test_damage_is_named_and_the_way_out_told(model: Seq2Seq, tmp_path: Path, name: str) -> None:
    optimizer, checkpoints = stepped(model), Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(State(step=step), model, optimizer)
    path = checkpoints.path(2) / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(SurdError, match=rf"{name}: damaged.* to go on from step 1\."):
        checkpoints.restore(2, model, optimizer)


def test_a_truncated_state_is_refused(model: Seq2Seq, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(State(step=1), model, stepped(model))
    path = checkpoints.path(1) / "state.json"
    for text in (path.read_text()[:40], "[]", '{"format": 1}'):
        path.write_text(text)
        with pytest.raises(SurdError, match=r"state\.json: damaged"):
            checkpoints.read(1)


def test_a_newer_format_is_refused(model: Seq2Seq, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(State(step=1), model, stepped(model))
    path = checkpoints.path(1) / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(SurdError, match=r"newer surd \(checkpoint format 99"):
        checkpoints.read(1)


def test_what_a_kill_leaves_half_written_does_not_count(model: Seq2Seq, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(State(step=1), model, stepped(model))
    (tmp_path / ".step-000002.123.partial").mkdir()
    assert checkpoints.steps() == [1]
    checkpoints.save(State(step=3), model, stepped(model))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000003"]


def test_a_kill_between_keeping_the_weights_and_dropping_the_rest(model: Seq2Seq, tmp_path: Path) -> None:
    optimizer, checkpoints = stepped(model), Checkpoints(tmp_path, keep=1)
    first = checkpoints.save(evaluated(1), model, optimizer)
    (tmp_path / "averaging").mkdir()
    (checkpoints.path(1) / "weights.safetensors").rename(tmp_path / "averaging" / "step-000001.safetensors")
    checkpoints.save(evaluated(2, first.best, first.recent), model, optimizer)
    assert checkpoints.steps() == [2]
    assert checkpoints.weights(1).exists()


def test_averaging_is_the_mean_of_each_number(tmp_path: Path) -> None:
    models = [Seq2Seq(ARCHITECTURE, 12, 12) for _ in range(3)]
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step, one in enumerate(models):
        checkpoints.save(State(step=step), one, stepped(one))
    mean = average([checkpoints.weights(step) for step in range(3)])
    for name, tensor in mean.items():
        expected = torch.stack([dict(one.named_parameters())[name].detach().double() for one in models]).mean(0)
        torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-7)
        assert tensor.dtype == torch.float32
