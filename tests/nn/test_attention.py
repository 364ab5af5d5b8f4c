"""Attention: three ways to the same function and its gradients, masks, and dropout on the weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surd.nn.attention import PLAIN_KEYS, _ShortAttention, attention, fast_attention, merge_heads, split_heads
from surd.nn.mask import causal_mask, padding_mask
from surd.nn.ragged import Layout

BATCH, HEADS, D_K, SCALE = 3, 2, 4, 0.5
LENGTHS = (5, 2, 4)
CPU = torch.device("cpu")


def leaves(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [(BATCH, HEADS, length, D_K) for length in (queries, keys, keys)]
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def mask_of(kind: str) -> Tensor | None:
    causal = causal_mask(5, torch.float64, CPU).added
    padding = padding_mask(Layout(LENGTHS, CPU), torch.float64).added
    return {"none": None, "causal": causal, "padding": padding, "both": causal + padding}[kind]


def short(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return _ShortAttention.apply(query, key, value, SCALE, mask)


ANY_QUERIES = [(mask, queries) for mask in ("none", "padding") for queries in (5, 1, 9)]
SQUARE = [("causal", 5), ("both", 5)]


@pytest.mark.parametrize(("mask", "queries"), [*ANY_QUERIES, *SQUARE])
def test_three_ways_are_one_function(mask: str, queries: int) -> None:
    inputs, hidden = leaves(queries, 5), mask_of(mask)
    upstream = torch.randn(BATCH, HEADS, queries, D_K, dtype=torch.float64)
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=hidden, scale=SCALE)
    gradients = torch.autograd.grad(expected, inputs, upstream)
    for ours in (attention(*inputs, SCALE, hidden), short(*inputs, hidden), fast_attention(*inputs, SCALE, hidden)):
        assert (ours - expected).abs().max() <= 1e-13
        for found, wanted in zip(torch.autograd.grad(ours, inputs, upstream), gradients, strict=True):
            assert (found - wanted).abs().max() <= 1e-13


@pytest.mark.parametrize("mask", ["none", "both"])
def test_gradcheck(mask: str) -> None:
    hidden = mask_of(mask)
    assert torch.autograd.gradcheck(lambda *x: short(*x, hidden), leaves(5, 5))
    assert torch.autograd.gradcheck(lambda *x: attention(*x, SCALE, hidden), leaves(5, 5))


def test_inputs_are_left_as_they_were() -> None:
    """The short way works in place on what it made itself, never on what it was given."""
    inputs = leaves(5, 5)
    before = [x.detach().clone() for x in inputs]
    mask = mask_of("both")
    kept = mask.clone()
    upstream = torch.randn(BATCH, HEADS, 5, D_K, dtype=torch.float64)
    given = upstream.clone()
    short(*inputs, mask).backward(upstream)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))
    assert torch.equal(mask, kept) and torch.equal(upstream, given)


def test_large_scores_do_not_overflow() -> None:
    query, key, value = (x.detach().float() for x in leaves(5, 5))
    ours = short(1e4 * query, 1e4 * key, value, None)
    assert torch.isfinite(ours).all()
    assert (ours - attention(1e4 * query, 1e4 * key, value, SCALE)).abs().max() <= 1e-5


def test_hidden_keys_do_not_matter() -> None:
    query, key, value = leaves(5, 5)
    hidden = mask_of("padding")
    before = fast_attention(query, key, value, SCALE, hidden)
    with torch.no_grad():
        key[1, :, 2:], value[1, :, 2:] = 1e3, -1e3
    assert torch.equal(fast_attention(query, key, value, SCALE, hidden), before)


@pytest.mark.parametrize("keys", [PLAIN_KEYS, PLAIN_KEYS + 1])
def test_both_sides_of_the_limit_agree(keys: int) -> None:
    inputs = leaves(3, keys)
    assert (fast_attention(*inputs, SCALE) - attention(*inputs, SCALE)).abs().max() <= 1e-13


def test_bf16_is_close() -> None:
    rough = [x.detach().bfloat16().requires_grad_() for x in leaves(5, 5)]
    exact = [x.detach().double().requires_grad_() for x in rough]
    mask = causal_mask(5, torch.bfloat16, CPU).added
    ours, theirs = short(*rough, mask), attention(*exact, SCALE, mask.double())
    upstream = torch.randn_like(theirs).bfloat16()
    ours.backward(upstream)
    theirs.backward(upstream.double())
    assert ours.dtype == torch.bfloat16
    assert (ours - theirs).norm() <= 0.01 * theirs.norm()
    for found, wanted in zip(rough, exact, strict=True):
        assert (found.grad - wanted.grad).norm() <= 0.03 * wanted.grad.norm()


def test_dropout_falls_on_the_weights_and_keeps_their_mean() -> None:
    """With a value of ones, a row is the sum of its weights: one on average, no longer one each time."""
    query, key, _ = leaves(5, 5)
    ones = torch.ones(BATCH, HEADS, 5, D_K, dtype=torch.float64)
    rows = torch.stack([fast_attention(query, key, ones, SCALE, None, 0.25)[..., 0] for _ in range(2000)])
    assert rows.std() > 0.1
    assert abs(rows.mean().item() - 1) < 5 * rows.std().item() / rows.numel() ** 0.5


def test_causal_mask_hides_the_future_and_nothing_else() -> None:
    whole = causal_mask(6, torch.float32, CPU)
    mask = whole.added[0, 0]
    assert torch.equal(whole.keys[0, 0, :, 0], (mask == 0).sum(1).float())
    query, key = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    assert torch.equal(mask == 0, key <= query) and torch.equal(mask == float("-inf"), key > query)


def test_padding_mask_hides_padding_and_nothing_else() -> None:
    layout = Layout(LENGTHS, CPU)
    whole = padding_mask(layout, torch.float32)
    mask = whole.added
    assert torch.equal(whole.keys[:, 0, 0, 0], (mask[:, 0, 0] == 0).sum(1).float())
    assert torch.equal(mask[:, 0, 0] == 0, layout.real) and torch.equal(mask[:, 0, 0] == float("-inf"), ~layout.real)
    full = padding_mask(Layout((4, 4), CPU), torch.float32)
    assert full.added is None and full.keys.flatten().tolist() == [4, 4]


@pytest.mark.parametrize("lengths", [LENGTHS, (3, 3)], ids=["ragged", "full"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_heads_are_split_and_merged(lengths: tuple[int, ...], parts: int) -> None:
    """Part p, head h holds the features from (p·heads + h)·d_k on; merging undoes it."""
    layout = Layout(lengths, CPU)
    flat = torch.randn(layout.total, parts * HEADS * D_K)
    for part, split in enumerate(split_heads(flat, layout, (HEADS,) * parts)):
        assert split.shape == (layout.batch, HEADS, layout.longest, D_K)
        first = (part * HEADS + 1) * D_K
        assert torch.equal(split[1, 1, 0], flat[lengths[0], first : first + D_K])
        width = HEADS * D_K
        assert torch.equal(merge_heads(split, layout), flat[:, part * width : (part + 1) * width])
