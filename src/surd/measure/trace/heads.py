"""Heads: each one's own factor, and what its own softmax does; one wrong head hides among sound ones."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from surd.measure.sites import HeadReadings
from surd.measure.softmax.rows import RAW, Space, float_sums, merge, read, sum_block
from surd.measure.softmax.statistics import DEAD, FEWEST_KEYS
from surd.measure.trace.gains import HIDDEN, Gain, Slope

MOST = 2**21
"""Logits that are read of one attention: all of a probe's, a sample of rows of a long input."""
GAP = 50.0
"""A row whose logits fall into two groups this far apart hides the lower one, as a mask of -100 does."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a softmax does in each row; a unit is one head of one sentence. NaN in rows that see no key."""

    keys: Float[Tensor, "units rows"]
    largest: Float[Tensor, "units rows"]
    std: Float[Tensor, "units rows"]
    entropy: Float[Tensor, "units rows"]
    dead: Float[Tensor, "units rows"]
    weights: Float[Tensor, "units keys"]
    """Mean weight of each key, over the rows that see enough keys."""
    distances: Float[Tensor, "units distances"]
    """Mean weight at each distance from query to key, over those rows of them that have a key there."""


@torch.no_grad()
def read_rows(scores: Float[Tensor, "*units queries keys"]) -> Rows:
    """Exact in every row that is read; scores of hidden keys are far below all others, or -inf."""
    grid = scores.flatten(0, -3) if scores.dim() > 2 else scores[None]
    units, _, keys = grid.shape
    step = max(1, -(-grid.numel() // MOST))
    grid = grid[:, ::step].float()
    hidden = ~(grid > HIDDEN)
    hidden |= grid < _lowest_shown(grid.masked_fill(hidden, -torch.inf))
    tile = grid.masked_fill(hidden, -torch.inf).contiguous()
    rows = tile.shape[0] * tile.shape[1]
    raw = tile.new_empty(RAW, 1, rows)
    sum_block(tile.clone()[None, None], hidden[None, None], Space(tile.numel(), tile), raw[:, 0])
    values = {name: value.view(units, -1) for name, value in read(merge(float_sums(raw))).items()}
    seen = (keys - hidden.sum(-1)).to(values["entropy"])
    enough = (seen >= FEWEST_KEYS)[..., None].to(tile.device)
    weights = torch.softmax(tile, -1).where(enough, 0.0)
    norm = values["jacobian_norm"]
    return Rows(
        keys=seen,
        largest=values["max"].abs(),
        std=values["variance"].sqrt(),
        entropy=values["entropy"] / seen.clamp(min=2).log(),
        dead=torch.where(norm.isnan(), norm, (norm < DEAD).to(norm)),
        weights=weights.sum(1) / enough.sum(1).clamp(min=1),
        distances=_by_distance(weights, enough, step),
    )


def _by_distance(
    weights: Float[Tensor, "units rows keys"], enough: Bool[Tensor, "units rows 1"], step: int
) -> Float[Tensor, "units distances"]:
    """Where fewer than half of the rows have a key that far away, the others count as rows of no weight there."""
    units, rows, keys = weights.shape
    place = torch.arange(rows, device=weights.device) * step
    distance = (torch.arange(keys, device=weights.device) - place[:, None] + int(place[-1])).flatten()
    total = weights.new_zeros(units, int(place[-1]) + keys)
    count = total.clone().index_add_(1, distance, enough.expand(weights.shape).flatten(1).to(total))
    total.index_add_(1, distance, weights.flatten(1))
    return total / count.maximum(enough.sum(1) / 2).clamp(min=1)


def _lowest_shown(x: Float[Tensor, "units rows keys"]) -> Float[Tensor, "units rows 1"]:
    """The smallest logit above the first gap of each row; -inf where there is none."""
    ordered = x.sort(-1, descending=True).values
    gaps = (ordered[..., :-1] - ordered[..., 1:]).nan_to_num(0.0, posinf=0.0) > GAP
    first = gaps.int().argmax(-1, keepdim=True) if gaps.shape[-1] else gaps.int().sum(-1, keepdim=True)
    return torch.where(gaps.any(-1, keepdim=True), ordered.gather(-1, first), -torch.inf)


def of_heads(rows: Rows, heads: int | None) -> HeadReadings:
    """One number a head; all units are one head where heads cannot be told from sentences."""
    units = rows.keys.shape[0]
    count = heads if heads and units % heads == 0 else 1
    enough = _by_head(rows.keys >= FEWEST_KEYS, count)

    def mean(values: Tensor) -> tuple[float, ...]:
        kept = _by_head(values, count).where(enough, 0.0)
        return tuple((kept.sum(1) / enough.sum(1)).tolist())

    largest = _by_head(rows.largest.nan_to_num(0.0), count).amax(1)
    return HeadReadings(
        keys=int(rows.keys.max()),
        entropy=mean(rows.entropy),
        dead=mean(rows.dead),
        std=mean(rows.std),
        largest=tuple(largest.tolist()),
        shared=tuple(rows.weights.unflatten(0, (-1, count)).mean(0).amax(-1).tolist()),
        distance=tuple(rows.distances.unflatten(0, (-1, count)).mean(0).amax(-1).tolist()),
    )


def read_softmax(scores: Tensor, heads: int | None, axis: int) -> HeadReadings | None:
    """Of a softmax that is seen; over another axis than the last there are no rows of keys to speak of."""
    if axis != scores.dim() - 1 or scores.dim() < 2:
        return None
    return of_heads(read_rows(scores), heads if scores.dim() in (3, 4) else None)


def by_head(
    heads: int | None, query: Gain | None, key: Gain | None, steep: Slope | None, factor: float, axes: int = 4
) -> tuple[float, ...]:
    """Each head's c: its own gains of query and key, its own slope of the scores; empty where they cannot be told.

    `factor` is what stands in the product itself, or in the kernel; the product has so many `axes`.
    """
    if heads is None or query is None or key is None:
        return ()
    parts = [_head_gain(query.squares, heads, axes), _head_gain(key.squares, heads, axes)]
    if steep is not None:
        parts.append(_head_slope(steep, heads))
    if any(part is None for part in parts):
        return ()
    whole = torch.full((heads,), factor, dtype=torch.float64)
    for part in parts:
        whole = whole * part  # pyrefly: ignore[unsupported-operation]
    return tuple(whole.tolist())


def _head_gain(squares: Tensor, heads: int, axes: int) -> Float[Tensor, " heads"] | None:
    """Root mean square of the entries that something reaches, along the axis of the heads.

    An operand with fewer axes than the product is one for all heads, as the keys of multi-query attention are.
    """
    if squares.dim() == 3 < axes:
        return (squares.sum() / (squares > 0).sum().clamp(min=1)).sqrt().expand(heads)
    if squares.dim() == 3 and squares.shape[0] % heads == 0:
        squares = squares.unflatten(0, (-1, heads))
    if squares.dim() != 4:
        return None
    whole = [axis for axis in (1, 2, 0) if squares.shape[axis] == heads]
    shared = [axis for axis in (1, 2) if heads % squares.shape[axis] == 0 and squares.shape[axis] < heads]
    axis = next(iter(whole), None)
    if axis is None:
        axis = next(iter(shared), None)
        if axis is None:
            return None
        squares = squares.repeat_interleave(heads // squares.shape[axis], axis)
    flat = squares.movedim(axis, 0).flatten(1)
    return (flat.sum(1) / (flat > 0).sum(1).clamp(min=1)).sqrt()


def _head_slope(steep: Slope, heads: int) -> Float[Tensor, " heads"] | None:
    """Length of what arrived at the product over that of what left the scores, both along the axis of the heads."""
    lengths = []
    for x in (steep.pulled, steep.vector):
        x = x.detach().double().cpu()
        if x.dim() == 3 and x.shape[0] % heads == 0:
            x = x.unflatten(0, (-1, heads))
        if x.dim() != 4 or x.shape[1] != heads:
            return None
        lengths.append(x.movedim(1, 0).flatten(1).norm(dim=1))
    return lengths[0] / lengths[1]


def _by_head(x: Float[Tensor, "units rows"], heads: int) -> Float[Tensor, "heads rows"]:
    return x.unflatten(0, (-1, heads)).movedim(1, 0).flatten(1)
