"""The position-wise network of each layer: the family of feed-forwards."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.moments import Bend, Moments, Rectifier, Smooth, linear
from surd.measure.signal import Signal, Tape
from surd.measure.sites import Role
from surd.nn.linear import Linear
from surd.part import Part

RECTIFIER, GAUSSIAN, SWISH = Rectifier(), Smooth(F.gelu), Smooth(F.silu)


@dataclass(frozen=True, kw_only=True)
class Widths:
    """A feed-forward at the start: its widths, and the standard deviations of its weights."""

    d_model: int
    d_ff: int
    inner: float
    outer: float


@dataclass(frozen=True, kw_only=True)
class ReLU(Part, kind="relu"):
    """max(0, x W₁ + b₁) W₂ + b₂. Source: Vaswani et al. 2017, section 3.3."""

    def law(self, widths: Widths, rms: float) -> Moments:
        """Gains on an input of that rms, with biases at 0."""
        return _two_matrices(widths, RECTIFIER, rms)

    def build(self, d_model: int, d_ff: int) -> "FeedForwardLayer":
        return FeedForwardLayer(d_model, d_ff, torch.relu_, RECTIFIER)


@dataclass(frozen=True, kw_only=True)
class GELU(Part, kind="gelu"):
    """gelu(x W₁ + b₁) W₂ + b₂ with gelu(x) = x Φ(x), exactly. Source: Hendrycks & Gimpel 2016 (arXiv 1606.08415)."""

    def law(self, widths: Widths, rms: float) -> Moments:
        """Gains on an input of that rms, with biases at 0."""
        return _two_matrices(widths, GAUSSIAN, rms)

    def build(self, d_model: int, d_ff: int) -> "FeedForwardLayer":
        return FeedForwardLayer(d_model, d_ff, F.gelu, GAUSSIAN)


@dataclass(frozen=True, kw_only=True)
class SwiGLU(Part, kind="swiglu"):
    """(swish(x W) * x V) W₂, with swish(x) = x σ(x) and no biases. Source: Shazeer 2020 (arXiv 2002.05202).

    It has three matrices: with two thirds of the inner width it has as many weights as the other members.
    """

    def law(self, widths: Widths, rms: float) -> Moments:
        """Gains on an input of that rms: gate and value are independent, and the gradient comes back through both."""
        inner = linear(widths.d_model, widths.d_ff, widths.inner)
        size = rms * inner.forward
        gate = SWISH.law(size)
        middle = Moments(gate.forward * size, size * (gate.backward**2 + gate.forward**2) ** 0.5)
        return linear(widths.d_ff, widths.d_model, widths.outer) @ middle @ inner

    def build(self, d_model: int, d_ff: int) -> "GatedLayer":
        return GatedLayer(d_model, d_ff)


class FeedForwardLayer(nn.Module):
    """Holds two matrices with a non-linearity between them, which may work in place."""

    def __init__(self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor], bend: Bend):
        super().__init__()
        self.activation, self.bend = activation, bend
        self.inner = Linear(d_model, (d_ff,))
        self.outer = Linear(d_ff, (d_model,))

    def forward(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        return self.outer(self.activation(self.inner(x)))

    def expect(self, x: Signal, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        (inner,) = tape.linear(x, self.inner)
        (branch,) = tape.linear(tape.bent(inner, self.bend), self.outer)
        return tape.note(self.outer, Role.BRANCH, branch)


class GatedLayer(nn.Module):
    """Holds the gate and the value, stacked in one matrix, and the way out."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.inner = Linear(d_model, (d_ff, d_ff), bias=False)
        self.outer = Linear(d_ff, (d_model,), bias=False)

    def forward(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        gate, value = self.inner(x).chunk(2, -1)
        return self.outer(F.silu(gate) * value)

    def expect(self, x: Signal, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        gate, value = tape.linear(x, self.inner)
        (branch,) = tape.linear(tape.times(tape.bent(gate, SWISH), value), self.outer)
        return tape.note(self.outer, Role.BRANCH, branch)


def _two_matrices(widths: Widths, between: Bend, rms: float) -> Moments:
    inner = linear(widths.d_model, widths.d_ff, widths.inner)
    return linear(widths.d_ff, widths.d_model, widths.outer) @ between.law(rms * inner.forward) @ inner


FeedForward = ReLU | GELU | SwiGLU
PositionWise = FeedForwardLayer | GatedLayer
