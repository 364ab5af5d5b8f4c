"""A tie is one Parameter through all that can happen to a model: build, copy, cast, save, load, resize, training."""

import copy
from pathlib import Path

import pytest
import torch
from parity.small import VOCABULARY, pairs, sentences, small_model

from surd.files import load_tensors
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.models.weights import load_weights, save_weights
from surd.nn.special import PAD
from surd.nn.tying import Tying
from surd.optim.optimizer import AdamW

TABLES = {Tying.NONE: 3, Tying.OUTPUT: 2, Tying.ALL: 1}
"""How many matrices the three names stand for."""


@pytest.fixture(params=list(Tying))
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return small_model(tying=request.param)


def tables(model: Seq2Seq) -> list[torch.nn.Parameter]:
    return [model.source.table, model.target.table, model.projection.weight]


def assert_tied_as_declared(model: Seq2Seq) -> None:
    """By identity, and by what happens when one name is written to."""
    source, target, output = tables(model)
    tying = model.architecture.tying
    assert (target is output) == (tying is not Tying.NONE) and (source is target) == (tying is Tying.ALL)
    assert source is not output or tying is Tying.ALL
    with torch.no_grad():
        for table in (source, target, output):
            before = [other[5, 0].item() for other in tables(model)]
            table[5, 0] += 1
            moved = [other[5, 0].item() != old for other, old in zip(tables(model), before, strict=True)]
            assert moved == [other is table for other in tables(model)]
    model.verify_ties()


def unique_numbers(model: Seq2Seq) -> int:
    names = dict(model.named_parameters(remove_duplicate=False))
    return sum(weight.numel() for weight in {id(weight): weight for weight in names.values()}.values())


def test_built_and_counted_once(model: Seq2Seq) -> None:
    assert_tied_as_declared(model)
    size = VOCABULARY * model.architecture.d_model
    unique, saved = model.parameter_counts()
    assert unique == unique_numbers(model) == sum(weight.numel() for weight in model.parameters())
    assert saved == (3 - TABLES[model.architecture.tying]) * size
    untied, _ = small_model(tying=Tying.NONE).parameter_counts()
    assert untied == unique + saved


def test_deepcopy_keeps_it(model: Seq2Seq) -> None:
    twin = copy.deepcopy(model)
    assert_tied_as_declared(twin)
    assert not {id(weight) for weight in model.parameters()} & {id(weight) for weight in twin.parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_casting_keeps_it(model: Seq2Seq, dtype: torch.dtype) -> None:
    moved = model.to(dtype).to("cpu")
    assert all(weight.dtype == dtype for weight in moved.parameters())
    assert_tied_as_declared(moved)


def test_state_dict_round_trip_keeps_it(model: Seq2Seq) -> None:
    twin = small_model(tying=model.architecture.tying)
    twin.load_state_dict(model.state_dict())
    assert_tied_as_declared(twin)


def test_file_holds_it_once_and_gives_the_same_model_back(model: Seq2Seq, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(model, path, {"step": "7"})
    stored = load_tensors(path)
    matrices = [tensor for tensor in stored.values() if tensor.shape == (VOCABULARY, model.architecture.d_model)]
    assert len(matrices) == TABLES[model.architecture.tying]
    assert sum(tensor.numel() for tensor in stored.values()) == unique_numbers(model)

    twin = small_model(tying=model.architecture.tying)
    batch = pairs(sentences(), sentences())
    assert not torch.equal(twin(*batch[:2]), model(*batch[:2]))
    load_weights(twin, path)
    assert torch.equal(twin.logits(twin(*batch[:2])), model.logits(model(*batch[:2])))
    assert_tied_as_declared(twin)


def test_a_step_keeps_it_and_moves_it_once(model: Seq2Seq) -> None:
    optimizer = AdamW().build(model)
    stepped = [weight for group in optimizer.param_groups for weight in group["params"]]
    assert sum(weight.numel() for weight in stepped) == unique_numbers(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    before = model.target.table.detach().clone()
    model.loss(*pairs(sentences(), sentences())).loss.backward()
    optimizer.step()
    assert (model.target.table - before).abs().max() <= 0.0101, "Adam's first step moves a number by the rate, once"
    assert_tied_as_declared(model)


def test_the_shared_gradient_is_the_sum_over_its_uses() -> None:
    """Source table, target table and projection of an untied twin, each with the shared values."""
    tied, untied = small_model(tying=Tying.ALL), small_model(tying=Tying.NONE)
    values = tied.state_dict()
    untied.load_state_dict(values)  # its three tables hold equal numbers now
    batch = pairs(sentences(), sentences())
    for model in (tied, untied):
        model.loss(*batch, smoothing=0.1).loss.backward()
    uses = [table.grad for table in tables(untied)]
    assert all(use.abs().max() > 0 for use in uses)
    assert (tied.target.table.grad - sum(uses)).abs().max() <= 1e-12
    assert untied.source.table.grad[PAD].abs().max() == 0, "padding is never read"


@pytest.mark.parametrize("size", [VOCABULARY + 13, VOCABULARY - 13], ids=["grow", "cut"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("tying", list(Tying))
def test_resize_keeps_rows_and_tie(tying: Tying, bias: bool, size: int) -> None:
    model = small_model(tying=tying, output_bias=bias)
    kept = min(size, VOCABULARY)
    before = [table.detach().clone() for table in tables(model)]
    source, target, _ = pairs(sentences(vocabulary=20), sentences(vocabulary=20))
    logits = model.logits(model(source, target))
    model.resize(size, size)
    assert model.vocabularies == (size, size)
    for table, old in zip(tables(model), before, strict=True):
        assert table.shape == (size, model.architecture.d_model) and table.dtype == old.dtype and table.requires_grad
        assert torch.equal(table[:kept], old[:kept])
    if size > VOCABULARY:
        rms = model.target.table[kept:].square().mean().sqrt().item()
        assert rms == pytest.approx(model.architecture.d_model**-0.5, rel=0.2)
    after = model.logits(model(source, target))
    assert after.shape[1] == size
    assert (after[:, :kept] - logits[:, :kept]).abs().max() <= 1e-12
    assert_tied_as_declared(model)


def test_a_resized_model_trains_and_saves(model: Seq2Seq, tmp_path: Path) -> None:
    model.resize(VOCABULARY + 5, VOCABULARY + 5)
    model.loss(*pairs(sentences(), sentences())).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    save_weights(model, tmp_path / "model.safetensors")
    twin = small_model(tying=model.architecture.tying, vocabulary=VOCABULARY + 5)
    load_weights(twin, tmp_path / "model.safetensors")
    assert_tied_as_declared(twin)


def test_sides_of_unequal_size() -> None:
    """Possible without the three-way tie; resized each on its own."""
    sizes = {"d_model": 32, "heads": 4, "d_k": 8, "d_ff": 48, "encoder_layers": 1, "decoder_layers": 1}
    model = Seq2Seq(Architecture(**sizes, tying=Tying.OUTPUT), 20, 30)
    assert model.vocabularies == (20, 30)
    before = model.target.table.detach().clone()
    model.resize(25, 30)
    assert model.vocabularies == (25, 30) and torch.equal(model.target.table, before)
    assert_tied_as_declared(model)


def test_a_broken_tie_is_noticed() -> None:
    model = small_model(tying=Tying.ALL)
    model.projection.weight = torch.nn.Parameter(model.projection.weight.detach().clone())
    with pytest.raises(AssertionError, match="output tie"):
        model.verify_ties()
    model.tie()
    assert_tied_as_declared(model)
    with torch.no_grad():
        untied = small_model(tying=Tying.OUTPUT)
        untied.source.table = untied.target.table
    with pytest.raises(AssertionError, match="source tie"):
        untied.verify_ties()
