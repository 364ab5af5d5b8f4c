"""Entering: of what the first block reads, how much comes from the tokens and how much from what was added to them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surd.measure.tensors import rms
from surd.measure.trace.calls import LookUp, Seen

EXPLAINED = 0.999
"""R² from which numbers are a multiple of the rows, plus what is the same in every row of the batch."""
EVEN = 2e-3
"""Relative spread of lengths below which all are one: those of drawn vectors spread by 1 / √(2 · width)."""
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-5}
"""Relative to the sum, what is added is told from rounding above this; 0.02 in half precision."""


@dataclass(frozen=True, kw_only=True)
class Added:
    """What was added to the scaled rows of a look-up."""

    ratio: float | None
    """rms of the scaled rows over that of the addition; None where nothing is added."""
    even: bool
    """Whether the addition has one length at all positions, as sinusoids have: sin² + cos² = 1."""


def by_values(lookup: LookUp, entering: Seen) -> float | None:
    """The multiplier from the numbers themselves, each position's mean over the batch taken off both sides.

    Exact in the type at hand, and blind to what only changes gradients; None where the rows are not all of it.
    """
    sides = _sides(lookup, entering)
    if sides is None or sides[0].shape[0] < 2:
        return None
    rows, x = (side - side.mean(0) for side in sides)
    overlap, energy, own = float((rows * x).sum()), float((x * x).sum()), float((rows * rows).sum())
    if not energy or not own or overlap**2 <= EXPLAINED * energy * own:
        return None
    return overlap / own


def added(lookup: LookUp, multiplier: float, entering: Seen) -> Added | None:
    """What is left of what enters without the scaled rows."""
    sides = _sides(lookup, entering)
    if sides is None:
        return None
    rows, x = sides
    rest = x - multiplier * rows
    tolerance = ROUNDING.get(entering.value.dtype, 0.02) if entering.value is not None else 0.0
    size = rms(rest)
    if size <= tolerance * rms(x):
        return Added(ratio=None, even=False)
    lengths = rest.mean(0).norm(dim=-1)
    even = len(lengths) > 2 and float(lengths.std()) < EVEN * float(lengths.mean())
    return Added(ratio=rms(multiplier * rows) / size, even=even)


def shares(lookup: LookUp) -> tuple[float, float] | None:
    """Of the mean square of what is read first: what differs between tokens, and what differs between positions.

    Random tokens differ from row to row and positions do not: the first is the variance over the batch at each
    position, the second that of the batch's mean over positions, which still holds a B-th of the tokens.
    """
    if lookup.reads is None or not lookup.token or lookup.ids.dim() != 2:
        return None
    shape, reads = lookup.ids.shape, lookup.reads
    width = reads.numel() // shape.numel()
    if width * shape.numel() != reads.numel() or reads.shape[-1] != width:
        return None
    turned_on_the_way = reads.dim() == 3 and reads.shape[:2] == shape[::-1] != shape
    x = (reads.transpose(0, 1) if turned_on_the_way else reads).double().reshape(*shape, width)
    x = x.transpose(0, 1) if lookup.turned else x
    batch, positions = x.shape[:2]
    whole = float(x.square().sum(-1).mean())
    if batch < 2 or positions < 2 or not whole:
        return None
    tokens = float(x.var(0).sum(-1).mean())
    places = max(0.0, float(x.mean(0).var(0).sum()) - tokens / batch)
    return tokens / whole, places / whole


def _sides(
    lookup: LookUp, entering: Seen
) -> tuple[Float[Tensor, "batch positions width"], Float[Tensor, "batch positions width"]] | None:
    """The rows as stored, and what enters, both with the batch first."""
    rows, x = lookup.rows.value, entering.value
    if rows is None or x is None or rows.dim() != 3 or rows.shape[-1] != x.shape[-1]:
        return None
    if x.shape != rows.shape:
        if x.dim() == 3 and x.transpose(0, 1).shape == rows.shape:
            x = x.transpose(0, 1)
        elif x.numel() == rows.numel():
            x = x.reshape(rows.shape)
        else:
            return None
    rows, x = rows.double(), x.double()
    return (rows.transpose(0, 1), x.transpose(0, 1)) if lookup.turned else (rows, x)
