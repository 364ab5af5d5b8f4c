"""What an operation does to the size of what flows through it: rms forwards, rms of the gradient backwards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt

import torch
from torch import Tensor

POINTS = 200
"""Of the quadrature: exact for polynomials of twice that degree, and to 1e-9 for the activations in use."""
TERMS = 40
"""Of a series in Hermite polynomials."""


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


class Bend:
    """A function applied to each entry of normal numbers, as what it does to their mean products."""

    def values(self, products: Tensor) -> Tensor:
        """E f(a) f(b) for each pair of normals with these mean products, a square matrix."""
        raise NotImplementedError

    def slopes(self, products: Tensor) -> Tensor:
        """E f'(a) f'(b)."""
        raise NotImplementedError

    def law(self, rms: float) -> Moments:
        """Gains on numbers of that rms."""
        square = torch.tensor([[rms**2]], dtype=torch.float64)
        return Moments(self.values(square).item() ** 0.5 / rms, self.slopes(square).item() ** 0.5)


@dataclass(frozen=True)
class Smooth(Bend):
    """Any smooth function, by Gauss–Hermite quadrature."""

    function: Callable[[Tensor], Tensor]

    def values(self, products: Tensor) -> Tensor:
        """By quadrature."""
        return normal_products(self.function, products)

    def slopes(self, products: Tensor) -> Tensor:
        """By quadrature of the derivative, which autograd gives."""
        return normal_products(self._slope, products)

    def _slope(self, z: Tensor) -> Tensor:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            return torch.autograd.grad(self.function(z).sum(), z)[0]


class Rectifier(Bend):
    """max(0, z), whose kink a quadrature would meet slowly.

    Half of the squares and half of the gradients are left, whatever the size: He et al. 2015. For two positions: Cho &
    Saul 2009, arc-cosine kernels of order 1 and 0.
    """

    def values(self, products: Tensor) -> Tensor:
        """The kernel of order 1, halved."""
        roots, angle = _angles(products)
        return roots * (angle.sin() + (pi - angle) * angle.cos()) / (2 * pi)

    def slopes(self, products: Tensor) -> Tensor:
        """The kernel of order 0, halved."""
        return (pi - _angles(products)[1]) / (2 * pi)


def _angles(products: Tensor) -> tuple[Tensor, Tensor]:
    """Products of the two rms, and angles whose cosine is the correlation."""
    rms = products.diagonal().sqrt()
    roots = rms[:, None] * rms
    return roots, (products / roots).clamp(-1, 1).fill_diagonal_(1).acos()


def normal_mean(function: Callable[[Tensor], Tensor], std: float) -> float:
    """E f(z) for z ~ N(0, std)."""
    points, weights = _quadrature()
    return float((function(points * std) * weights).sum())


def normal_products(function: Callable[[Tensor], Tensor], products: Tensor) -> Tensor:
    """E f(a) f(b) for each pair of normals with these mean products, a square matrix."""
    points, weights = _quadrature()
    angle, rms = _angles(products)[1], products.diagonal().sqrt()
    first = function(rms[:, None] * points) * weights  # of a; b = rms · (cos · a + sin · something independent)
    mixed = angle.cos()[..., None, None] * points[:, None] + angle.sin()[..., None, None] * points
    second = function(rms[:, None, None] * mixed) @ weights
    return (first[:, None] * second).sum(-1)


def normal_series(function: Callable[[Tensor], Tensor], std: float, correlations: Tensor) -> Tensor:
    """E f(a) f(b) of normals with one standard deviation and any number of correlations: Mehler 1866.

    Σ cₙ² ρⁿ over the coefficients of f in normalised Hermite polynomials; what `TERMS` of them leave goes to the last.
    """
    points, weights = _quadrature()
    values = function(std * points) * weights
    before, polynomial, squares = torch.zeros_like(points), torch.ones_like(points), []
    for n in range(TERMS):
        squares.append((values @ polynomial).square())
        before, polynomial = polynomial, (points * polynomial - n**0.5 * before) / (n + 1) ** 0.5
    squares[-1] += normal_mean(lambda z: function(z).square(), std) - sum(squares)
    total = torch.zeros_like(correlations)
    for square in reversed(squares):
        total = total * correlations + square
    return total


def normalised(width: int, removed: int, rms: float) -> Moments:
    """A norm over `width` features that takes out `removed` directions (the mean and the length, or the length)."""
    return Moments(1 / rms, sqrt(max(0, width - removed) / width) / rms)


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Tensor, Tensor]:
    """Points and weights for the mean over a standard normal, in float64.

    Golub & Welsch 1969: the eigenvalues of the recurrence of the Hermite polynomials, and the squares of the first
    components of their eigenvectors.
    """
    off = torch.arange(1, POINTS, dtype=torch.float64).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, vectors[0].square()
