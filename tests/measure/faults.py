"""Small models whose attention scale is right or planted wrong, each written in the ways that people write it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, D_MODEL, HEADS = 97, 48, 4
D_K = D_MODEL // HEADS

Mixing = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def by_product(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    return (query @ key.transpose(-1, -2) * factor).softmax(-1) @ value


def by_division(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    return F.softmax(torch.matmul(query, key.mT) / (1 / factor), dim=-1) @ value


def by_query(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    return torch.softmax(query * factor @ key.mT, -1) @ value


def by_einsum(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    scores = torch.einsum("b h i d, b h j d -> b h i j", query, key) * factor
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), value)


def by_alpha(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    flat = [x.flatten(0, 1) for x in (query, key, value)]
    scores = torch.baddbmm(torch.zeros(()), flat[0], flat[1].mT, beta=0, alpha=factor)
    return torch.bmm(scores.softmax(-1), flat[2]).view(query.shape)


def by_argument(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, scale=factor)


def by_query_and_default(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    return F.scaled_dot_product_attention(query * factor, key, value)


WRITINGS: dict[str, Mixing] = {
    mixing.__name__: mixing for mixing in (by_product, by_division, by_query, by_einsum, by_alpha, by_argument)
}
HEALTHY = D_K**-0.5
FAULTS = {"missing": 1.0, "doubled": 1 / D_K, "width": D_MODEL**-0.5}
"""Factors that stand where 1/√d_k belongs."""


class Attention(nn.Module):
    """Projections, heads, and whatever way of mixing it is given."""

    def __init__(self, mixing: Mixing = by_product, factor: float = HEALTHY):
        super().__init__()
        self.mixing, self.factor = mixing, factor
        self.query, self.key, self.value, self.output = (nn.Linear(D_MODEL, D_MODEL) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = [split(project(x)) for project in (self.query, self.key, self.value)]
        return self.output(merge(self.mixing(*heads, self.factor)))


class Language(nn.Module):
    """Tokens to logits, with one attention between."""

    def __init__(self, attention: nn.Module, multiplier: float = 1.0):
        super().__init__()
        self.table, self.multiplier = nn.Embedding(VOCABULARY, D_MODEL), multiplier
        self.norm, self.attention = nn.LayerNorm(D_MODEL), attention
        self.head = nn.Linear(D_MODEL, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) * self.multiplier
        return self.head(x + self.attention(self.norm(x)))


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, D_K)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)
