"""Asks an attention kernel that cannot be looked into for its scale: values that are one-hot show its weights.

With weights w(q), log w(s·q) - log w(0·q) is s·c·q·k up to a constant in each row: masks and biases cancel, and the
regression on q·k gives c. The weights w(0·q) tell the masks and biases themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surd.measure.trace.written import for_all_heads

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""query, key, value -> mixed values."""
EXPLAINED = 0.999
"""Share of the logits' differences that q·k must explain; below, it is no plain scaled product."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a kernel computes: softmax(scale · Q Kᵀ + bias) V."""

    scale: float
    bias: Float[Tensor, "*batch queries keys"]
    """-inf at hidden keys, and 0 at the one that is favoured most in each row: a softmax feels differences alone."""
    axis: int
    """Where positions stand, in queries, keys and values."""


def fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether three tensors can be query, key and value of one attention."""
    ranks = {query.dim(), key.dim(), value.dim()}
    return ranks in ({3}, {4}) and query.shape[-1] == key.shape[-1] and key.shape[:-1] == value.shape[:-1]


@torch.no_grad()
def ask(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor) -> Answer | None:
    """The scale inside a kernel and what it adds to scores, or None when it does not behave like an attention.

    Both orders of the axes are tried: `(batch, heads, length, d_k)` and `(batch, length, heads, d_k)`.
    """
    for axis in dict.fromkeys((query.dim() - 2, 1)):
        products = _products(query.movedim(axis, -2), key.movedim(axis, -2))
        if products is None:
            continue
        strength = float(query.shape[-1] ** 0.5 / products.std())
        sharp = _weights(kernel, strength * query, key, value, axis)
        blunt = _weights(kernel, 0 * query, key, value, axis)
        if sharp is None or blunt is None:
            continue
        seen = ((sharp > 0) & (blunt > 0)).double()
        logits = torch.where(seen > 0, sharp.double().log() - blunt.double().log(), 0.0)
        left, right = _centred(logits, seen), _centred(products.double(), seen)
        energy = (right * right).sum()
        if energy > 0 and (left * right).sum() ** 2 > EXPLAINED * energy * (left * left).sum():
            bias = blunt.clamp(min=0).log() - blunt.amax(-1, keepdim=True).log()
            return Answer(scale=float((left * right).sum() / energy) / strength, bias=bias, axis=axis)
    return None


def _products(
    query: Float[Tensor, "*batch queries d_k"], key: Float[Tensor, "*shared keys d_k"]
) -> Float[Tensor, "*batch queries keys"] | None:
    """q·k, where several query heads may share a key head; None where the axes do not fit."""
    if query.dim() == 4 and query.shape[1] % key.shape[1]:
        return None
    key = for_all_heads(key, query) if query.dim() == 4 else key
    if query.shape[:-3] != key.shape[:-3] or key.shape[-3] not in (1, query.shape[-3]):
        return None
    return query.float() @ key.float().mT


def _weights(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, axis: int) -> Tensor | None:
    """The kernel's weights `(*batch, queries, keys)`, as many columns a call as values are wide."""
    keys, width = value.shape[axis], value.shape[-1]
    columns = []
    for start in range(0, keys, width):
        shown = torch.zeros_like(value)
        for column in range(min(width, keys - start)):
            shown.select(axis, start + column)[..., column] = 1
        mixed = kernel(query, key, shown)
        if mixed.shape != (*query.shape[:-1], width):
            return None
        columns.append(mixed.movedim(axis, -2)[..., : min(width, keys - start)])
    weights = torch.cat(columns, -1)
    sums_to_one = torch.allclose(weights.float().sum(-1), weights.new_ones((), dtype=torch.float32), atol=0.02)
    return weights if sums_to_one and bool((weights >= -1e-6).all()) else None


def _centred(x: Tensor, seen: Tensor) -> Tensor:
    """Deviations from the row's mean over the keys that are seen, 0 elsewhere."""
    return (x - (x * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)) * seen
