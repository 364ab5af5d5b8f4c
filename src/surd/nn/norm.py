"""Normalisation of the residual stream: the family of norms, and where in a block they stand."""

from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.moments import Moments, normalised
from surd.measure.signal import Signal, Tape
from surd.measure.sites import Role
from surd.part import Part


class NormOrder(StrEnum):
    """Where the norm stands in a sub-layer."""

    POST = "post"
    """x ← norm(x + f(x)). Vaswani et al. 2017."""
    PRE = "pre"
    """x ← x + f(norm(x)), and one more norm after the last layer. Xiong et al. 2020 (arXiv 2002.04745)."""


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Part, kind="layer"):
    """(x - mean) / √(variance + epsilon) · gain + bias, over the features of each token. Source: Ba et al. 2016."""

    epsilon: float = 1e-5
    """Added to the variance."""

    def law(self, width: int, rms: float) -> Moments:
        """Gains on `width` features of that rms around 0; mean and length are taken out of the gradient."""
        return normalised(width, 2, (rms**2 + self.epsilon) ** 0.5)

    def build(self, width: int, gain: float = 1.0) -> "LayerNormLayer":
        """The layer for `width` features, each gain starting at `gain`."""
        return LayerNormLayer(width, self.epsilon, gain)


class LayerNormLayer(nn.Module):
    """Holds gain and bias of a layer norm; they are kept in fp32 and rounded to the dtype of the activations."""

    def __init__(self, width: int, epsilon: float, gain: float):
        super().__init__()
        self.epsilon, self.first_gain = epsilon, gain
        self.gain = nn.Parameter(torch.full((width,), gain))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        return F.layer_norm(x, self.gain.shape, self.gain.to(x.dtype), self.bias.to(x.dtype), self.epsilon)

    def expect(self, x: Signal, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        return tape.note(self, Role.NORM, tape.normalised(x, self.first_gain, self.epsilon, centred=True))


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Part, kind="rms"):
    """x / √(mean square + epsilon) · gain: the mean stays in. Source: Zhang & Sennrich 2019 (arXiv 1910.07467)."""

    epsilon: float = 1e-6
    """Added to the mean square."""

    def law(self, width: int, rms: float) -> Moments:
        """Gains on `width` features of that rms; the length is taken out of the gradient."""
        return normalised(width, 1, (rms**2 + self.epsilon) ** 0.5)

    def build(self, width: int, gain: float = 1.0) -> "RMSNormLayer":
        """The layer for `width` features, each gain starting at `gain`."""
        return RMSNormLayer(width, self.epsilon, gain)


class RMSNormLayer(nn.Module):
    """Holds the gain of an RMS norm, kept in fp32 and rounded to the dtype of the activations."""

    def __init__(self, width: int, epsilon: float, gain: float):
        super().__init__()
        self.epsilon, self.first_gain = epsilon, gain
        self.gain = nn.Parameter(torch.full((width,), gain))

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), self.epsilon)

    def expect(self, x: Signal, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        return tape.note(self, Role.NORM, tape.normalised(x, self.first_gain, self.epsilon, centred=False))


Norm = LayerNorm | RMSNorm
NormLayer = LayerNormLayer | RMSNormLayer
