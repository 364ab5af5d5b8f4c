"""Rows of a softmax: gains against the Jacobian written out, expectations against plain simulation."""

import math

import pytest
import torch

from surd.lab.samples import growths, rms, slopes
from surd.lab.softmax import (
    certain_share,
    chi,
    entropy,
    entry_gain,
    expected_top,
    frobenius,
    over_queries,
    through,
    trace,
)
from surd.measure.softmax.gaussian import expected_rows


def rows(std: float, count: int, keys: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    return (std * torch.randn(count, keys, dtype=torch.float64, generator=draw)).softmax(-1)


@pytest.mark.parametrize("std", [0.1, 1.0, 8.0])
def test_gains_are_those_of_the_jacobian_written_out(std: float) -> None:
    weights = rows(std, 20, 9)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]
    assert frobenius(weights) == pytest.approx(jacobian.norm(dim=(1, 2)), rel=1e-7, abs=1e-10)
    assert entry_gain(weights) == pytest.approx(jacobian.norm(dim=2), rel=1e-7, abs=1e-10)
    assert trace(weights) == pytest.approx(jacobian.diagonal(dim1=1, dim2=2).sum(-1) / (1 - 1 / 9), rel=1e-9)


def test_the_gradient_is_autograd_s() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(5, 7, dtype=torch.float64)
    (expected,) = torch.autograd.grad(logits.softmax(-1), logits, gradient)
    assert through(logits.detach().softmax(-1), gradient) == pytest.approx(expected, rel=1e-9)


def test_the_norm_is_largest_at_two_equal_keys() -> None:
    even = torch.full((1, 64), 1 / 64, dtype=torch.float64)
    pair = torch.zeros(1, 64, dtype=torch.float64)
    pair[0, :2] = 0.5
    assert frobenius(pair).item() == 0.5
    assert frobenius(even).item() == pytest.approx(math.sqrt(63) / 64)
    assert entropy(even.log()).item() == pytest.approx(1.0)


@pytest.mark.parametrize(("std", "keys"), [(0.5, 16), (1, 64), (2, 256), (8, 64), (32, 16)])
def test_the_largest_weight_is_that_of_a_simulation(std: float, keys: int) -> None:
    tops = rows(std, 20_000, keys).amax(-1)
    error = tops.std().item() / math.sqrt(len(tops))
    assert expected_top(std, keys) == pytest.approx(tops.mean().item(), abs=5 * error + 2e-4)


def test_certain_rows_come_near_their_limit() -> None:
    found = (rows(40.0, 2_000, 4096).amax(-1) > 0.99).double().mean().item()
    assert certain_share(40.0, 4096) == pytest.approx(found, abs=0.05)


def test_rows_of_real_queries_are_a_mixture_over_their_lengths() -> None:
    draw = torch.Generator().manual_seed(4)
    query, key = (torch.randn(400, 32, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    weights = (query @ key.mT).softmax(-1)
    found = trace(weights).mean().item()
    assert over_queries(lambda one: one.trace / (1 - 1 / 32), 4, 1.0, 32) == pytest.approx(found, abs=0.01)
    assert abs(expected_rows(2.0, 32).trace / (1 - 1 / 32) - found) < 0.03  # near, yet not the same


def test_the_chi_law_has_its_second_moment() -> None:
    for freedom in (2, 4, 64, 1024):
        assert sum(weight * place**2 for place, weight in chi(freedom)) == pytest.approx(freedom, rel=0.02)


def test_exponents_are_found() -> None:
    values = {size: [2.0 * size**0.5, 3.0 * size**-1.0] for size in (4, 16, 64)}
    assert slopes(values) == pytest.approx([0.5, -1.0])
    assert growths(values) == pytest.approx([4.0, 1 / 16])
    assert rms(torch.tensor([3.0, -4.0])) == pytest.approx(math.sqrt(12.5))
