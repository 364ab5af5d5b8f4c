"""Byte dropout: its rate, its mean, its gradient, and the bits it is made of."""

import math

import pytest
import torch

from surd.nn.dropout import LEVELS, Dropout, add_dropped, dropout

NUMBERS = 400_003
"""Not a multiple of eight: the last word is used in part."""


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_rate_within_binomial_bounds(rate: float) -> None:
    rounded = round(rate * LEVELS) / LEVELS
    dropped = (dropout(torch.ones(NUMBERS), rate, True) == 0).sum().item()
    assert abs(dropped - NUMBERS * rounded) < 5 * math.sqrt(NUMBERS * rounded * (1 - rounded))


@pytest.mark.parametrize("byte", range(8))
def test_every_byte_of_a_word_drops_equally(byte: int) -> None:
    """A draw that is never negative would leave the last byte a bit short, and drop twice as often there."""
    rate = 0.25
    dropped = (dropout(torch.ones(NUMBERS // 8 * 8), rate, True).view(-1, 8)[:, byte] == 0).float().mean().item()
    assert abs(dropped - rate) < 5 * math.sqrt(rate * (1 - rate) / (NUMBERS // 8))


@pytest.mark.parametrize("byte", range(8))
def test_the_full_range_of_a_byte_is_used(byte: int) -> None:
    """At the highest rate a number is kept only if its byte is 255, once in 256."""
    kept = (dropout(torch.ones(NUMBERS // 8 * 8), 255 / 256, True).view(-1, 8)[:, byte] != 0).sum().item()
    expected = NUMBERS / 8 / LEVELS
    assert abs(kept - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize("rate", [0.1, 1 / 3])
def test_what_is_kept_is_scaled_so_that_the_mean_is_exact(rate: float) -> None:
    x = torch.randn(10_000, dtype=torch.float64)
    y = dropout(x, rate, True)
    kept = y != 0
    factor = LEVELS / (LEVELS - round(rate * LEVELS))
    assert torch.equal(y[kept], x[kept] * factor)
    assert (1 - round(rate * LEVELS) / LEVELS) * factor == pytest.approx(1, abs=1e-15)


def test_neighbours_are_independent() -> None:
    """Numbers of one word, and of neighbouring words: correlation within chance."""
    mask = (dropout(torch.ones(NUMBERS), 0.5, True) != 0).double() - 0.5
    for shift in (1, 2, 7, 8, 9, 64):
        assert abs((mask[:-shift] * mask[shift:]).mean().item() * 4) < 5 / math.sqrt(NUMBERS)


def test_the_gradient_passes_where_the_number_passed() -> None:
    x = torch.randn(37, 11, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4, True)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    factor = LEVELS / (LEVELS - round(0.4 * LEVELS))
    assert torch.equal(x.grad, torch.where(y != 0, upstream * factor, 0.0))


def test_added_to_a_stream_it_is_the_same_dropout() -> None:
    """The same draw gives the same mask; the stream passes whole, forwards and backwards."""
    stream, x, upstream = (torch.randn(37, 11, dtype=torch.float64) for _ in range(3))
    found, expected = [], []
    for results, function in (
        (found, lambda s, h: add_dropped(s, h, 0.4, True)),
        (expected, lambda s, h: s + dropout(h, 0.4, True)),
    ):
        torch.manual_seed(3)
        leaves = stream.clone().requires_grad_(), x.clone().requires_grad_()
        y = function(*leaves)
        y.backward(upstream)
        results.extend([y.detach(), *(leaf.grad for leaf in leaves)])
    for ours, plain in zip(found, expected, strict=True):
        assert (ours - plain).abs().max() <= 1e-15
    assert torch.equal(found[1], upstream)
    assert torch.equal(add_dropped(stream, x, 0.4, False), stream + x)


def test_identity_without_rate_and_outside_training() -> None:
    x = torch.randn(50)
    assert dropout(x, 0.0, True) is x and dropout(x, 0.3, False) is x
    layer = Dropout(0.3)
    assert layer.eval()(x) is x
    assert not torch.equal(layer.train()(x), x)


def test_a_seed_fixes_the_mask() -> None:
    masks = []
    for _ in range(2):
        torch.manual_seed(5)
        masks.append(dropout(torch.ones(1000), 0.3, True))
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], dropout(torch.ones(1000), 0.3, True))


@pytest.mark.parametrize("shape", [(), (1,), (3, 0), (3, 5), (2, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_and_dtype_stay(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = dropout(torch.ones(shape, dtype=dtype), 0.3, True)
    assert y.shape == shape and y.dtype == dtype


def test_adding_what_is_left_equals_dropout_and_an_addition() -> None:
    stream, x = torch.randn(7, 33, requires_grad=True), torch.randn(7, 33, requires_grad=True)
    upstream = torch.randn(7, 33)
    results = []
    for function in (lambda: add_dropped(stream, x, 0.3, True), lambda: stream + dropout(x, 0.3, True)):
        torch.manual_seed(3)
        y = function()
        results.append((y.detach(), *torch.autograd.grad(y, (stream, x), upstream)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert (results[0][2] == 0).any()
    torch.testing.assert_close(add_dropped(stream, x, 0.3, False), stream + x)
