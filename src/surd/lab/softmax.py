"""Rows of a softmax: how concentrated each is, how much gradient passes it, and what Gaussian logits should give."""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from surd.lab.samples import Statistics
from surd.measure.softmax.gaussian import GaussianRows, expected_rows, typical_maximum
from surd.measure.softmax.statistics import DEAD

INTEGRAL = "exact one-dimensional integral for independent Gaussian logits"
CERTAIN = 0.99
"""A row whose largest weight is above this is called certain."""
RANKS = (1, 2, 4, 8, 16, 32, 64)
"""Places of weights in their row, from the largest."""


def normal(*shape: int, generator: torch.Generator) -> Float[Tensor, "..."]:
    """Independent draws from N(0, 1) in float64: in float32 the small numbers of a saturated row would be lost."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def trace(weights: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    """tr J / (1 - 1/n) = (1 - Σ p²) / (1 - 1/n) of J = diag(p) - p pᵀ: 1 for an even row, 0 for a one-hot one."""
    return (1 - weights.square().sum(-1)) / (1 - 1 / weights.shape[-1])


def expected_trace(rows: GaussianRows) -> float:
    """The mean of the same."""
    return rows.trace / (1 - 1 / rows.keys)


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


def statistics(weights: Tensor) -> Statistics:
    """What one seed says of the gradient through its rows."""
    traces, norms, top = trace(weights), frobenius(weights), weights.max(-1, keepdim=True)
    gains = entry_gain(weights)
    winner = gains.gather(-1, top.indices)
    certain = winner[top.values > CERTAIN]
    low, high = norms.flatten().quantile(torch.tensor([0.05, 0.95], dtype=norms.dtype)).tolist()
    ranked = gains.gather(-1, weights.argsort(-1, descending=True)).flatten(0, -2).mean(0)
    return {
        "mean trace": traces.mean().item(),
        "median trace": traces.median().item(),
        "median norm": norms.median().item(),
        "mean norm": norms.mean().item(),
        "rms norm": norms.square().mean().sqrt().item(),
        "5 % norm": low,
        "95 % norm": high,
        "certain": certain.numel() / winner.numel(),
        "dead": (norms < DEAD).double().mean().item(),
        "winner": winner.median().item(),
        "certain winner": certain.median().item() if certain.numel() else 0.0,
        **{f"rank {rank}": ranked[rank - 1].item() for rank in RANKS if rank <= len(ranked)},
    }


def entropy(logits: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    """-Σ p ln p / ln n: 1 for an even row, 0 for a one-hot one."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1) / math.log(logits.shape[-1])


def expected_top(std: float, keys: int) -> float:
    """The mean of the largest weight, for independent Gaussian logits.

    With 1/Z = ∫ e^{-tZ} dt and t = eᵘ: E max p = ∫ du ∫ e^{u+z} e^{-e^{u+z}} dC(z)ⁿ, where C(z) is the integral of the
    density times e^{-e^{u+y}} over y < z, so that dCⁿ is the chance that the largest of n lies at z.
    """
    step, spacing = 0.25, min(0.2, std / 50)
    z = torch.arange(-9 * std, 9 * std, spacing, dtype=torch.float64)
    density = torch.exp(-0.5 * (z / std) ** 2)
    density /= density.sum()
    total = 0.0
    for u in torch.arange(-9 * std - 40 - math.log(keys), 9 * std + 5, step, dtype=torch.float64).split(256):
        rate = (u[:, None] + z).clamp(max=700).exp()
        below = (density * (-rate).exp()).cumsum(-1).pow(keys)
        total += (rate[:, 1:] * below.diff(dim=-1)).sum().item()
    return total * step


def certain_share(std: float, keys: int) -> float:
    """The share of rows with a weight above 0.99 for Gaussian logits in the frozen phase, std > 2 Φ⁻¹(1 - 1/n).

    There the weights follow the Poisson–Dirichlet law with m = Φ⁻¹(1 - 1/n) / std, and a weight above ½ is the
    largest: P(top > x) = ∫ₓ¹ u⁻¹⁻ᵐ (1-u)ᵐ⁻¹ du / (Γ(m) Γ(1-m)). Source: Derrida 1981; Pitman & Yor 1997.
    """
    m = typical_maximum(keys) / std
    # With v = (1-u)ᵐ the integrand has no pole: dv = -m (1-u)ᵐ⁻¹ du.
    v = torch.linspace(0, (1 - CERTAIN) ** m, 2001, dtype=torch.float64)
    integral = torch.trapezoid((1 - v.pow(1 / m)).pow(-1 - m), v).item() / m
    return math.sin(math.pi * m) / math.pi * integral


def over_queries(of: Callable[[GaussianRows], float], d_k: int, scale: float, keys: int) -> float:
    """The mean of an expectation over rows whose logits are real q·k of Gaussian components, times `scale`.

    Given the query, logits are independent Gaussians of standard deviation scale · |q|; |q| follows the chi law.
    """
    return sum(weight * of(expected_rows(scale * length, keys)) for length, weight in chi(d_k))


def chi(freedom: int, points: int = 11) -> Iterator[tuple[float, float]]:
    """Places and weights for the mean over the length of a vector of `freedom` Gaussian components."""
    middle, reach = math.sqrt(freedom - 0.5), 3.5 * math.sqrt(0.5)
    places = torch.linspace(max(0.02, middle - reach), middle + reach, points, dtype=torch.float64)
    logs = (freedom - 1) * places.log() - places.square() / 2
    weights = (logs - logs.max()).exp()
    yield from zip(places.tolist(), (weights / weights.sum()).tolist(), strict=True)
