"""Explains a kernel that cannot be looked into by its result: was it softmax(c · q · k + mask) v of its arguments?

The kernel itself is never called again: it may draw random numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

CLOSE = {torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest error relative to the largest result, by precision; 1e-4 in fp32."""
ROWS = 16


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Arguments of an attention, as (batch, heads, length, d_k)."""

    query: Tensor
    key: Tensor
    scale: float
    mask: Tensor | None
    causal: bool


@torch.no_grad()
def explain(out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explained | None:
    """The first reading of the arguments that gives the result's first rows; None where none does."""
    values = [*args, *kwargs.values()]
    query, key, value, *rest = [x.detach() for x in values if isinstance(x, Tensor)]
    if query.dim() != 4 or out.shape != (*query.shape[:-1], value.shape[-1]):
        return None
    numbers = [float(x) for x in values if isinstance(x, float | int) and not isinstance(x, bool)]
    scales = dict.fromkeys((*numbers, query.shape[-1] ** -0.5))
    for swap in (False, True):  # (batch, heads, length, d_k), and (batch, length, heads, d_k)
        q, k, v, o = (x.transpose(1, 2) if swap else x for x in (query, key, value, out.detach()))
        if q.shape[1] % k.shape[1] or k.shape[:-1] != v.shape[:-1] or q.shape[2] == 0:
            continue
        for scale, mask, causal in product(scales, [*_masks(rest, q, k), None], (False, True)):
            found = Explained(query=q, key=k, scale=scale, mask=mask, causal=causal)
            error = (_rows(found, v) - o[0, :, :ROWS].float()).abs().amax()
            if error <= CLOSE.get(o.dtype, 1e-4) * o[0, :, :ROWS].float().abs().amax():
                return found
    return None


def _masks(rest: list[Tensor], query: Tensor, key: Tensor) -> Iterator[Tensor]:
    """Tensors that broadcast to (batch, heads, queries, keys)."""
    shape = (*query.shape[:3], key.shape[2])
    for x in rest:
        fits = all(size in (1, full) for size, full in zip(reversed(x.shape), reversed(shape), strict=False))
        if 2 <= x.dim() <= 4 and fits and (x.dtype == torch.bool or x.is_floating_point()):
            yield x


def _rows(found: Explained, value: Tensor) -> Tensor:
    """The first rows of the first sentence."""
    group = found.query.shape[1] // found.key.shape[1]
    query, key, value = found.query[:1, :, :ROWS].float(), found.key[:1].float(), value[:1].float()
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    scores = found.scale * query @ key.mT
    if found.mask is not None:
        mask = found.mask[(None,) * (4 - found.mask.dim())]
        mask = mask[:1, :, : ROWS if mask.shape[2] > 1 else None]
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.float()
    if found.causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return (scores.softmax(-1) @ value)[0]
