"""How well a query fits a key, before the softmax: the family of scores."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.moments import normal_mean
from surd.part import Part


def dot_scores(
    query: Float[Tensor, "batch heads queries d_k"], key: Float[Tensor, "batch heads keys d_k"], scale: float
) -> Float[Tensor, "batch heads queries keys"]:
    """scale · Q Kᵀ. For independent unit components the scores have standard deviation scale · √d_k."""
    return query @ key.transpose(-1, -2) * scale


def additive_scores(
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch heads keys d_k"],
    weight: Float[Tensor, "heads d_k"],
) -> Float[Tensor, "batch heads queries keys"]:
    """Σ over features of weight · tanh(q + k): bounded by Σ |weight|, whatever the size of queries and keys.

    Source: Bahdanau, Cho & Bengio 2015 (arXiv 1409.0473), where q = W s and k = U h.
    """
    return (torch.tanh(query[:, :, :, None] + key[:, :, None]) * weight[:, None, None]).sum(-1)


def soft_cap(scores: Tensor, cap: float) -> Tensor:
    """cap · tanh(scores / cap): the identity for small scores, never beyond ±cap. Source: Gemma Team 2024."""
    return torch.tanh(scores / cap) * cap


@dataclass(frozen=True, kw_only=True)
class Dot(Part, kind="dot"):
    """The product of query and key, times the scale, which has its law. Source: Vaswani et al. 2017, equation 1."""


@dataclass(frozen=True, kw_only=True)
class Additive(Part, kind="additive"):
    """A small network over query and key: its size does not grow with d_k, so it takes no scale.

    Each score takes a tanh for each of the d_k features, which makes it many times slower than a product.
    Source: Bahdanau, Cho & Bengio 2015; compared with products in Britz et al. 2017 (arXiv 1703.03906).
    """

    def law(self, d_k: int) -> float:
        """Standard deviation of the first scores of independent unit queries and keys, whatever the width."""
        return normal_mean(lambda z: torch.tanh(z).square(), 2**0.5) ** 0.5

    def build(self, heads: int, d_k: int) -> "AdditiveScore":
        """The layer for `heads` heads of width `d_k`."""
        return AdditiveScore(heads, d_k)


class AdditiveScore(nn.Module):
    """Holds one vector a head; it starts at N(0, 1/√d_k), for scores of a standard deviation below 1."""

    def __init__(self, heads: int, d_k: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, d_k))

    def forward(
        self, query: Float[Tensor, "batch heads queries d_k"], key: Float[Tensor, "batch heads keys d_k"]
    ) -> Float[Tensor, "batch heads queries keys"]:
        return additive_scores(query, key, self.weight.to(query.dtype))


Score = Dot | Additive
