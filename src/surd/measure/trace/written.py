"""Attention written out: the scores that an attention in one call keeps to itself."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOST_SCORES = 2**24
"""So many are computed where a kernel computes none at once; a probe's inputs are far from it."""


def few(query: Float[Tensor, "*batch queries d_k"], key: Float[Tensor, "*shared keys d_k"]) -> bool:
    """Whether all scores can be held."""
    return query.shape[:-1].numel() * key.shape[-2] <= MOST_SCORES


def added(
    mask: Bool[Tensor, "*#batch #queries keys"] | Float[Tensor, "*#batch #queries keys"] | None,
    causal: bool,
    queries: int,
    keys: int,
    like: Tensor,
) -> Float[Tensor, "*#batch #queries keys"] | None:
    """What torch's own attention adds to the scores: a mask of truth values shows keys where it is True."""
    bias = mask
    if mask is not None and mask.dtype == torch.bool:
        bias = torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, -torch.inf)
    if causal:
        later = like.new_full((queries, keys), -torch.inf).triu(1)
        bias = later if bias is None else bias + later
    return bias


def scores(
    query: Float[Tensor, "*batch queries d_k"],
    key: Float[Tensor, "*shared keys d_k"],
    scale: float,
    bias: Float[Tensor, "*#batch #queries keys"] | None,
) -> Float[Tensor, "*batch queries keys"]:
    """scale · Q Kᵀ + bias."""
    products = query @ for_all_heads(key, query).mT * scale
    return products if bias is None else products + bias


def attend(
    query: Float[Tensor, "*batch queries d_k"],
    key: Float[Tensor, "*shared keys d_k"],
    value: Float[Tensor, "*shared keys d_v"],
    scale: float,
    bias: Float[Tensor, "*#batch #queries keys"] | None,
) -> Float[Tensor, "*batch queries d_v"]:
    """softmax(scale · Q Kᵀ + bias) V, 0 in a row that sees no key."""
    return torch._safe_softmax(scores(query, key, scale, bias), -1) @ for_all_heads(value, query)


def for_all_heads(
    shared: Float[Tensor, "*shared keys width"], query: Float[Tensor, "*batch queries d_k"]
) -> Float[Tensor, "*batch keys width"]:
    """Keys or values, those that several heads of queries share once for each of them."""
    if query.dim() < 3 or shared.shape[-3] in (1, query.shape[-3]):
        return shared
    return shared.repeat_interleave(query.shape[-3] // shared.shape[-3], -3)
