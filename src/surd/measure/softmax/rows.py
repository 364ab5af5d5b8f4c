"""Sums over a block of keys from which every statistic of a softmax row follows, and the way to merge blocks.

With u = logit − the row's largest, and weight = eᵘ, a softmax is weight / Σ weight. The largest entry has u = 0 and
weight 1; it is left out of the sums of weights, so that 1 − p and entropies of nearly one-hot rows lose no digits.
The sums merge as those of the online softmax do (Milakov & Gimelshein 2018, arXiv 1805.02867), any number of blocks at
once and in any order.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

RAW = 10
"""Numbers that `sum_block` leaves of a row."""
# Squares of weights are kept times this power of two squared, and cubes times its cube: the square of a weight of 1e-30
# would vanish in fp32, and with it the gradient of a nearly one-hot row, while half a million cubes of 1 still fit.
LIFT = 2.0**36
SHARP = 1.1
"""Where the weights of a row sum up to less, the largest is left out before they are summed, else taken off after."""


class Sums(NamedTuple):
    """What is left of each row of logits, in float64. `u` and `weight` as above; hidden keys do not take part."""

    keys: Float[Tensor, "*blocks rows"]
    """How many keys were visible."""
    largest: Float[Tensor, "*blocks rows"]
    """The largest logit; -inf where no key is visible."""
    offsets: Float[Tensor, "*blocks rows"]
    """Σ u."""
    square_offsets: Float[Tensor, "*blocks rows"]
    """Σ u²."""
    weights: Float[Tensor, "*blocks rows"]
    """Σ weight, the largest entry left out, as in all that follow."""
    square_weights: Float[Tensor, "*blocks rows"]
    """Σ weight²."""
    cube_weights: Float[Tensor, "*blocks rows"]
    """Σ weight³."""
    offset_weights: Float[Tensor, "*blocks rows"]
    """Σ u · weight."""
    square_offset_weights: Float[Tensor, "*blocks rows"]
    """Σ u² · weight."""


class Space:
    """Memory for one tile of logits, used again for each: without it, most of the time would go into new pages."""

    def __init__(self, elements: int, like: Tensor):
        self.zero = like.new_zeros(())
        self.memory = like.new_empty(3, elements)

    def tiles(self, rows: int, keys: int) -> tuple[Float[Tensor, "rows keys"], ...]:
        """Room for logits, weights and products."""
        return self.memory[:, : rows * keys].view(3, rows, keys).unbind()


def empty_raw(blocks: int, rows: int, like: Tensor) -> Float[Tensor, "raw blocks rows"]:
    """Of blocks without a visible key: where `sum_block` puts its results."""
    raw = like.new_zeros(RAW, blocks, rows)
    raw[1] = float("-inf")
    return raw


def sum_block(
    logits: Float[Tensor, "batch key_heads group queries keys"],
    hidden: Bool[Tensor, "#batch #key_heads #group #queries #keys"] | None,
    space: Space,
    raw: Float[Tensor, "raw rows"],
) -> None:
    """Writes what `float_sums` reads of one block of keys; hidden logits are -inf. Destroys the logits.

    Few passes over the tile, and none that makes a new one: the time goes into them.
    """
    visible, largest, offsets, offset_norm, whole, weights, squares, cubes, offset_weights, square_offset_weights = raw
    keys, rows = logits.shape[-1], visible.shape[0]
    u = logits.view(rows, keys)
    _, weight, product = space.tiles(rows, keys)
    torch.amax(u, -1, out=largest)
    if hidden is None:
        visible.fill_(keys)
        u.sub_(largest[:, None])
    else:
        visible.view(logits.shape[:-1]).copy_(hidden.expand(*hidden.shape[:-1], keys).logical_not().sum(-1))
        u.sub_(torch.where(visible > 0, largest, 0.0)[:, None])  # -inf minus -inf is no number
    torch.sum(torch.exp(u, out=weight), -1, out=whole)
    sharp = bool((whole < SHARP).any())
    if sharp:
        weight.frac_()  # the largest entries, and they alone, have the weight 1
    if hidden is not None:
        logits.masked_fill_(hidden, 0.0)  # their weight is 0 by now, and 0 times -inf would be no number
    torch.sum(u, -1, out=offsets)
    torch.linalg.vector_norm(u, dim=-1, out=offset_norm)
    weights.copy_(whole) if not sharp else torch.sum(weight, -1, out=weights)
    torch.sum(torch.addcmul(space.zero, weight, weight, value=LIFT**2, out=product), -1, out=squares)
    torch.sum(torch.addcmul(space.zero, product, weight, value=LIFT, out=product), -1, out=cubes)
    torch.sum(weight.mul_(u), -1, out=offset_weights)
    torch.sum(weight.mul_(u), -1, out=square_offset_weights)


def in_float64(x: Tensor) -> Float[Tensor, "..."]:
    """Apple's GPUs have none, so there it moves."""
    return x.to("cpu" if x.device.type == "mps" else x.device).double()


def float_sums(raw: Float[Tensor, "raw blocks rows"]) -> Sums:
    """What `sum_block` wrote, without the lift; a row in float64 is cheap, a tile is not."""
    wide = in_float64(raw)
    keys, largest, offsets, offset_norm, whole, weights, squares, cubes, offset_weights, square_offset_weights = wide
    # Entries as large as the largest, of weight 1 and u 0, that are not among the sums; less the one that is left out.
    ties = ((whole - weights).round() - 1).where(whole > 0, 0.0)
    return Sums(
        keys=keys,
        largest=largest,
        offsets=offsets,
        square_offsets=offset_norm.square(),
        weights=weights + ties,
        square_weights=squares / LIFT**2 + ties,
        cube_weights=cubes / LIFT**3 + ties,
        offset_weights=offset_weights,
        square_offset_weights=square_offset_weights,
    )


def merge(parts: Sums) -> Sums:
    """The sums over all blocks from those of each; the first axis is the block, and it goes.

    A block whose largest is δ below that of all: u grows by δ, a weight by r = e^δ, and its largest entry becomes an
    ordinary one, of u = δ and weight r. Expanding Σ (u + δ)ᵏ · weight · r gives the lines below.
    """
    seen = parts.keys > 0
    largest, winner = parts.largest.max(0)
    delta = torch.where(seen, parts.largest - largest, 0.0)
    rate = torch.where(seen, delta.exp(), 0.0)
    demoted = torch.ones_like(rate).scatter_(0, winner[None], 0.0)  # of blocks that tie for the largest, one has it
    weights, offset_weights = parts.weights + demoted, parts.offset_weights
    return Sums(
        keys=parts.keys.sum(0),
        largest=largest,
        offsets=(parts.offsets + delta * parts.keys).sum(0),
        square_offsets=(parts.square_offsets + delta * (2 * parts.offsets + delta * parts.keys)).sum(0),
        weights=(rate * weights).sum(0),
        square_weights=(rate**2 * (parts.square_weights + demoted)).sum(0),
        cube_weights=(rate**3 * (parts.cube_weights + demoted)).sum(0),
        offset_weights=(rate * (offset_weights + delta * weights)).sum(0),
        square_offset_weights=(
            rate * (parts.square_offset_weights + delta * (2 * offset_weights + delta * weights))
        ).sum(0),
    )


def read(sums: Sums) -> dict[str, Float[Tensor, " rows"]]:
    """The statistics of each row, by the names of `AttentionStatistics`; NaN where no key is visible.

    Entropy is a sum of two terms ≥ 0; in the trace and norm of the Jacobian diag(p) − p pᵀ the ones of the largest
    entry cancel on paper, before they can cancel digits.
    """
    e1, e2, e3, total = sums.weights, sums.square_weights, sums.cube_weights, 1 + sums.weights
    tilt, mean_offset = sums.offset_weights / total, sums.offsets / sums.keys
    square_norm = e1**2 + 3 * e2 + 2 * e1 * e2 + e1**2 * e2 - 2 * e3 * total + e2**2
    statistics = {
        "max": sums.largest,
        "log_sum_exp": sums.largest + e1.log1p(),
        "mean": sums.largest + mean_offset,
        "variance": (sums.square_offsets / sums.keys - mean_offset**2).clamp(min=0),
        "top": 1 / total,
        "entropy": e1.log1p() - tilt,
        "square_sum": (1 + e2) / total**2,
        "cube_sum": (1 + e3) / total**3,
        "score_variance": (sums.square_offset_weights / total - tilt**2).clamp(min=0),
        "trace": (2 * e1 + e1**2 - e2) / total**2,
        "jacobian_norm": square_norm.clamp(min=0).sqrt() / total**2,
    }
    unseen = sums.keys == 0
    return {name: values.masked_fill(unseen, float("nan")) for name, values in statistics.items()}
