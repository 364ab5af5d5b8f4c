"""Rows of a softmax: how concentrated each is, how much gradient passes it, and what Gaussian logits should give."""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from surd.measure.gaussian import GaussianRows, expected_rows

DEAD = 0.99
"""A row whose largest weight is above this passes almost no gradient."""


def normal(*shape: int, generator: torch.Generator) -> Float[Tensor, "..."]:
    """Independent draws from N(0, 1) in float64: in float32 the small numbers of a saturated row would be lost."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def trace(weights: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    """tr J / (1 - 1/n) = (1 - Σ p²) / (1 - 1/n) of J = diag(p) - p pᵀ: 1 for an even row, 0 for a one-hot one."""
    return (1 - weights.square().sum(-1)) / (1 - 1 / weights.shape[-1])


def frobenius(weights: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    """‖J‖_F = √(Σ p² - 2 Σ p³ + (Σ p²)²): the rms gain of a gradient whose entries are independent.

    At most ½, where two weights are ½ each; √(n-1)/n for an even row.
    """
    squares = weights.square().sum(-1)
    return (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()


def entry_gain(weights: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """p_i ‖e_i - p‖, the norm of row i of J: the rms gradient that logit i receives from a unit one."""
    squares = weights.square().sum(-1, keepdim=True)
    return weights * (1 - 2 * weights + squares).clamp(min=0).sqrt()


def through(weights: Float[Tensor, "*rows keys"], gradient: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """J g = p * (g - p·g): the gradient of the logits from that of the weights."""
    return weights * (gradient - (weights * gradient).sum(-1, keepdim=True))


def entropy(logits: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    """-Σ p ln p / ln n: 1 for an even row, 0 for a one-hot one."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1) / math.log(logits.shape[-1])


def frozen_dead_share(std: float, keys: int) -> float:
    """The share of dead rows for Gaussian logits in the frozen phase, std > 2 Φ⁻¹(1 - 1/n).

    There the weights follow the Poisson–Dirichlet law with m = Φ⁻¹(1 - 1/n) / std, and a weight above ½ is the
    largest: P(top > x) = ∫ₓ¹ u⁻¹⁻ᵐ (1-u)ᵐ⁻¹ du / (Γ(m) Γ(1-m)). Source: Derrida 1981; Pitman & Yor 1997.
    """
    m = math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - 2 / keys, dtype=torch.float64))) / std
    # With v = (1-u)ᵐ the integrand has no pole: dv = -m (1-u)ᵐ⁻¹ du.
    v = torch.linspace(0, (1 - DEAD) ** m, 2001, dtype=torch.float64)
    integral = torch.trapezoid((1 - v.pow(1 / m)).pow(-1 - m), v).item() / m
    return math.sin(math.pi * m) / math.pi * integral


def over_queries(of: Callable[[GaussianRows], float], d_k: int, scale: float, keys: int) -> float:
    """The mean of an expectation over rows whose logits are real q·k of Gaussian components, times `scale`.

    Given the query, logits are independent Gaussians of standard deviation scale · |q|; |q| follows the chi law.
    """
    weighed = [(weight, of(expected_rows(scale * length, keys))) for length, weight in chi(d_k)]
    return sum(weight * value for weight, value in weighed)


def chi(freedom: int, points: int = 11) -> Iterator[tuple[float, float]]:
    """Places and weights for the mean over the length of a vector of `freedom` Gaussian components."""
    middle, reach = math.sqrt(freedom - 0.5), 3.5 * math.sqrt(0.5)
    places = torch.linspace(max(0.02, middle - reach), middle + reach, points, dtype=torch.float64)
    logs = (freedom - 1) * places.log() - places.square() / 2
    weights = (logs - logs.max()).exp()
    yield from zip(places.tolist(), (weights / weights.sum()).tolist(), strict=True)
