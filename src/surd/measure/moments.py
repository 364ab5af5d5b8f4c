"""What an operation does to the size of what flows through it: rms forwards, rms of the gradient backwards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt

import torch
from torch import Tensor

POINTS = 200
"""Of the quadrature: exact for polynomials of twice that degree, and to 1e-9 for the activations in use."""


@dataclass(frozen=True)
class Moments:
    """Gains of an operation on independent normal numbers of a given rms.

    One after another they multiply, as long as what flows stays near normal and independent of the next weights.
    """

    forward: float
    """rms of the output over rms of the input."""
    backward: float
    """rms of the gradient at the input over rms of the gradient at the output."""

    def __matmul__(self, earlier: "Moments") -> "Moments":
        """First `earlier`, then this."""
        return Moments(self.forward * earlier.forward, self.backward * earlier.backward)


def linear(inputs: int, outputs: int, std: float) -> Moments:
    """A matrix of independent weights: an output is a sum over inputs, an input's gradient one over outputs."""
    return Moments(sqrt(inputs) * std, sqrt(outputs) * std)


def activation(function: Callable[[Tensor], Tensor], rms: float) -> Moments:
    """A function applied to normal numbers of that rms, by Gauss–Hermite quadrature."""
    points, _ = _quadrature()
    x = (points * rms).requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    with torch.no_grad():
        forward = normal_mean(lambda z: function(z).square(), rms) ** 0.5 / rms
    _, weights = _quadrature()
    return Moments(forward, float((slope.square() * weights).sum()) ** 0.5)


def normal_mean(function: Callable[[Tensor], Tensor], std: float) -> float:
    """E f(z) for z ~ N(0, std)."""
    points, weights = _quadrature()
    return float((function(points * std) * weights).sum())


def rectified() -> Moments:
    """max(0, z): half of the squares and half of the gradients are left, whatever the size. He et al. 2015."""
    return Moments(sqrt(0.5), sqrt(0.5))


def rectified_overlap(correlation: float) -> float:
    """E max(0, a) max(0, b) of unit normals with that correlation. Cho & Saul 2009, arc-cosine kernel of order 1."""
    angle = torch.tensor(correlation, dtype=torch.float64).clamp(-1, 1).arccos().item()
    return (sqrt(max(0.0, 1 - correlation**2)) + (pi - angle) * correlation) / (2 * pi)


def normalised(width: int, removed: int, rms: float) -> Moments:
    """A norm over `width` features that takes out `removed` directions (the mean and the length, or the length)."""
    return Moments(1 / rms, sqrt(max(0, width - removed) / width) / rms)


def dropped(rate: float) -> Moments:
    """Dropout: what is kept is divided by the share that is kept."""
    return Moments((1 - rate) ** -0.5, (1 - rate) ** -0.5)


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Tensor, Tensor]:
    """Points and weights for the mean over a standard normal, in float64.

    Golub & Welsch 1969: the eigenvalues of the recurrence of the Hermite polynomials, and the squares of the first
    components of their eigenvectors.
    """
    off = torch.arange(1, POINTS, dtype=torch.float64).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, vectors[0].square()
