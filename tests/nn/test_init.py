"""How weights start: the size of every one against its declared law."""

import math

import pytest
import torch
from torch import Tensor

from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.embedding import Embedding
from surd.nn.feedforward import FeedForwardLayer
from surd.nn.init import TransformerInit
from surd.nn.linear import Linear
from surd.nn.multihead import CrossAttention, SelfAttention
from surd.nn.norm import LayerNormLayer, NormOrder
from surd.nn.special import PAD
from surd.nn.tying import Tying

D_MODEL, HEADS, D_K, D_FF, VOCABULARY = 96, 4, 16, 200, 1500
"""Heads do not fill the width, so that no two sides of a matrix are equal."""


def built(**changes) -> Seq2Seq:
    sizes = {"d_model": D_MODEL, "heads": HEADS, "d_k": D_K, "d_ff": D_FF, "encoder_layers": 2, "decoder_layers": 2}
    return Seq2Seq(Architecture(**{**sizes, **changes}), VOCABULARY, VOCABULARY)


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def assert_glorot(weight: Tensor, inputs: int, outputs: int, gain: float = 1.0) -> None:
    """Uniform within ±gain·√(6 / (inputs + outputs)); the bound of 5 standard errors of a uniform's mean square."""
    limit = gain * math.sqrt(6 / (inputs + outputs))
    assert weight.shape == (outputs, inputs)
    assert weight.abs().max() <= limit and weight.abs().max() > 0.98 * limit
    assert (rms(weight) / limit) ** 2 == pytest.approx(1 / 3, abs=5 * math.sqrt(4 / 45 / weight.numel()))
    assert abs(weight.mean().item()) < 5 * limit / math.sqrt(3 * weight.numel())


@pytest.mark.parametrize("tying", list(Tying))
def test_tables_are_normal_with_a_zero_padding_row(tying: Tying) -> None:
    model = built(tying=tying)
    tables = [model.source.table, model.target.table, model.projection.weight]
    for table in tables:
        if table is not model.projection.weight or tying is not Tying.NONE:
            assert rms(table[PAD]) == 0
        real = table[PAD + 1 :]
        assert rms(real) * math.sqrt(D_MODEL) == pytest.approx(1, abs=5 / math.sqrt(2 * real.numel()))
        assert abs((real.double() ** 4).mean().item() / rms(real) ** 4 - 3) < 5 * math.sqrt(96 / real.numel())
    distinct = {id(table): table for table in tables}.values()
    assert len({table[5, 0].item() for table in distinct}) == len(distinct), "untied tables are drawn apart"


@pytest.mark.parametrize("gain", [0.5**0.5, 1.0])
def test_every_projection_is_glorot_by_itself(gain: float) -> None:
    """Fused ones part by part; those to query, key and value with the gain of attention."""
    model = built(init=TransformerInit(attention_gain=gain))
    wide, checked = HEADS * D_K, 0
    for module in model.modules():
        match module:
            case SelfAttention():
                for part in module.query_key_value.weight.chunk(3):
                    assert_glorot(part, D_MODEL, wide, gain)
                assert_glorot(module.output.weight, wide, D_MODEL)
                checked += 2
            case CrossAttention():
                assert_glorot(module.query.weight, D_MODEL, wide, gain)
                for part in module.key_value.weight.chunk(2):
                    assert_glorot(part, D_MODEL, wide, gain)
                assert_glorot(module.output.weight, wide, D_MODEL)
                checked += 3
            case FeedForwardLayer():
                assert_glorot(module.inner.weight, D_MODEL, D_FF)
                assert_glorot(module.outer.weight, D_FF, D_MODEL)
                checked += 2
    every = sum(isinstance(module, Linear) for module in model.modules())
    assert checked == every - 1, "all but the pre-softmax projection, which is a table"


@pytest.mark.parametrize("order", list(NormOrder))
@pytest.mark.parametrize("tying", list(Tying))
def test_biases_are_zero_and_gains_one(order: NormOrder, tying: Tying) -> None:
    """But for the one norm before a tied projection in a pre-norm stack, whose gains have one size below one."""
    model = built(norm_order=order, tying=tying, output_bias=True)
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            assert rms(module.bias) == 0, name
        if isinstance(module, LayerNormLayer):
            assert rms(module.bias) == 0, name
            size = module.gain.abs()
            if name == "decoder.norm" and order is NormOrder.PRE and tying is not Tying.NONE:
                assert torch.equal(size, size[:1].expand_as(size)) and 0 < size[0] < 1
            else:
                assert torch.equal(module.gain, torch.ones(D_MODEL)), name


@pytest.mark.parametrize("multiplied", [False, True])
def test_logits_and_embeddings_have_unit_size(multiplied: bool) -> None:
    """One matrix at the right size on both sides: logits of a unit state, and rows times √d_model."""
    model = built()
    if multiplied:
        real = model.target.table[PAD + 1 :] * model.target.multiplier
        assert rms(real) == pytest.approx(1, rel=0.01)
    else:
        logits = model.logits(torch.randn(400, D_MODEL))[:, PAD + 1 :]
        assert logits.std().item() == pytest.approx(1, rel=0.02)


def test_an_embedding_adds_rows_and_waves() -> None:
    model = built(dropout=0.0)
    embedding: Embedding = model.source
    tokens, positions = torch.tensor([7, 9, 7]), torch.tensor([0, 1, 5])
    waves = embedding.position(6, D_MODEL, torch.float32, torch.device("cpu"))
    expected = embedding.table[tokens] * math.sqrt(D_MODEL) + waves[positions]
    assert (embedding(tokens, positions, 6, torch.float32) - expected).abs().max() <= 1e-6
    size = rms(embedding(torch.arange(4, VOCABULARY), torch.zeros(VOCABULARY - 4, dtype=torch.int64), 1, torch.float32))
    assert size == pytest.approx(math.sqrt(1 + 0.5), rel=0.01)


def test_a_seed_fixes_every_weight() -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(built())
    first, again, other = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert all(not torch.equal(weight, other[name]) for name, weight in first.items() if weight.ndim > 1)


def test_redrawing_a_tied_model_draws_its_table_once() -> None:
    """With a generator of its own it needs and moves no other."""
    model = built(tying=Tying.ALL)
    state = torch.get_rng_state()
    for _ in range(2):
        model.architecture.init(model, torch.Generator().manual_seed(3))
        table = torch.empty(VOCABULARY, D_MODEL).normal_(0, D_MODEL**-0.5, generator=torch.Generator().manual_seed(3))
        assert torch.equal(model.source.table[PAD + 1 :], table[PAD + 1 :])
    assert torch.equal(torch.get_rng_state(), state)
