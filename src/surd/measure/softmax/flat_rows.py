"""The sums of `rows` in fewer passes, for rows that nothing hides and nothing peaks: those of most heads.

A softmax is blind to what a query has with all keys of a block, so the block's mean is taken from its keys before they
meet the query. The logits are then small numbers of mean 0: their exponentials need no shift, and their mean no sum.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surd.measure.softmax.rows import SHARP, Space, Sums, in_float64

RAW = 8
"""Numbers that `sum_flat` leaves of a row."""
HIGHEST = 25.0
"""The cubes of a thousand exponentials of this are still numbers in fp32."""
CLEAR = 0.01
"""A variance under p of at least this share of the largest logit's square is taken from sums about 0 without loss."""


@dataclass(frozen=True, kw_only=True)
class FlatHeads:
    """Queries and blocks of keys of some heads, laid out for the product."""

    query: Float[Tensor, "heads group queries d_k"]
    """Scaled."""
    blocks: tuple[Float[Tensor, "heads d_k width"], ...]
    """Keys without the mean of their block."""
    shared: Float[Tensor, "blocks heads group queries"]
    """The product with that mean."""
    first: Float[Tensor, "heads group queries"]
    """Logits of key 0."""

    @classmethod
    def of(cls, query: Float[Tensor, "heads group queries d_k"], key: Float[Tensor, "heads keys d_k"], width: int):
        """Whole blocks; keys that are left over make none."""
        parts = [part for part in key.transpose(1, 2).split(width, -1) if part.shape[-1] == width]
        means = torch.stack([part.mean(-1) for part in parts])
        blocks = (part - mean[..., None] for part, mean in zip(parts, means, strict=True))
        return cls(
            query=query,
            blocks=tuple(block.contiguous() for block in blocks),
            shared=torch.einsum("hgqd,bhd->bhgq", query, means),
            first=torch.einsum("hgqd,hd->hgq", query, key[:, 0]),
        )


def sum_flat(heads: FlatHeads, queries: slice, space: Space, raw: Float[Tensor, "raw blocks rows"]) -> bool:
    """Writes what `flat_sums` reads of the first blocks; whether rows are flat enough for it, and all numbers are."""
    query = heads.query[:, :, queries].flatten(1, 2)
    raw[RAW - 1].copy_(heads.shared[: raw.shape[1], :, :, queries].flatten(1))
    for key, into in zip(heads.blocks, raw[:RAW].unbind(1), strict=False):
        _pass(query, key, space, into)
    largest, _, weights, _, _, offset_weights, square_offset_weights = raw[: RAW - 1].contiguous()
    variance = square_offset_weights / weights - (offset_weights / weights).square_()
    flat = (variance >= CLEAR * largest * largest) & (weights >= SHARP * largest.exp()) & (largest <= HIGHEST)
    return bool(flat.all())


def _pass(query: Tensor, key: Tensor, space: Space, raw: Float[Tensor, "raw rows"]) -> None:
    """Writes the numbers of one block."""
    largest, norm, weights, square_weights, cube_weights, offset_weights, square_offset_weights, _ = raw
    (units, rows, _), keys = query.shape, key.shape[2]
    logits, weight, product = space.tiles(units * rows, keys)
    torch.bmm(query, key, out=logits.view(units, rows, keys))
    torch.amax(logits, -1, out=largest)
    torch.linalg.vector_norm(logits, dim=-1, out=norm)
    torch.sum(torch.exp(logits, out=weight), -1, out=weights)
    torch.sum(torch.mul(weight, weight, out=product), -1, out=square_weights)
    torch.sum(product.mul_(weight), -1, out=cube_weights)
    torch.sum(weight.mul_(logits), -1, out=offset_weights)
    torch.sum(weight.mul_(logits), -1, out=square_offset_weights)


def flat_sums(raw: Float[Tensor, "raw blocks rows"], width: int) -> Sums:
    """What `sum_flat` wrote of blocks of `width` keys, about the largest logit instead of 0, in float64."""
    wide = in_float64(raw[:RAW])
    largest, norm, weights, square_weights, cube_weights, offset_weights, square_offset_weights, shared = wide
    decay = (-largest).exp()
    weights, offset_weights = weights * decay, offset_weights * decay
    square_offset_weights = square_offset_weights * decay
    return Sums(
        keys=torch.full_like(largest, width),
        largest=largest + shared,
        offsets=-width * largest,
        square_offsets=norm.square() + width * largest.square(),
        weights=weights - 1,
        square_weights=square_weights * decay**2 - 1,
        cube_weights=cube_weights * decay**3 - 1,
        offset_weights=offset_weights - largest * weights,
        square_offset_weights=square_offset_weights - 2 * largest * offset_weights + largest.square() * weights,
    )
