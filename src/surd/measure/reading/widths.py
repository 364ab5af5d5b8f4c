"""Widths: over how many entries a score really sums; a product may be cut in parts, or be wider than its heads."""

from dataclasses import dataclass
from math import isclose

from torch import Tensor

from surd.measure.trace.calls import Projection
from surd.measure.trace.gains import Gain
from surd.measure.trace.notes import Notes

ALIKE = 0.01
"""How far factors of terms may be apart that are one factor."""
SHARED = 0.9
"""Share of the scores that a term must be part of: products may stand side by side, too."""


@dataclass(frozen=True, eq=False)
class Term:
    """One of the products that are summed into scores."""

    width: int
    """Over how many entries it sums; without an absorbed matrix."""
    absorbed: bool
    factor: float
    reached: Tensor
    """Which of the scores it is part of."""
    content: bool
    """Both of its operands are made of what differs from row to row."""


def content_parts(terms: list[Term]) -> list[Term]:
    """The products of content at one factor that are summed: one product of concatenations, cut into parts.

    So is that of multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434).
    """
    return [one for one in terms if one is terms[0] or (one.content and _alike(one, terms[0]))]


def with_positions(terms: list[Term], parts: list[Term]) -> int | None:
    """Their width and that of the terms of positions, if there are such at the same factor.

    Some divide by the root of all (He et al. 2021, arXiv 2006.03654; Ke et al. 2021, arXiv 2006.15595), others by that
    of the content alone (Dai et al. 2019, arXiv 1901.02860; Shaw et al. 2018, arXiv 1803.02155).
    """
    if not parts:
        return None
    others = [one for one in terms if one not in parts and _alike(one, parts[0])]
    return sum(one.width for one in (*parts, *others)) if others else None


def _alike(one: Term, first: Term) -> bool:
    if one.reached.shape != first.reached.shape or not isclose(one.factor, first.factor, rel_tol=ALIKE):
        return False
    return int((one.reached & first.reached).sum()) >= SHARED * int(first.reached.sum())


def absorbed(notes: Notes, query: Gain, key: Gain) -> int | None:
    """By how much a product is wider than its heads, if the queries have taken over the matrix of the keys.

    (W_q x)ᵀ (W_k c) = (W_kᵀ W_q x)ᵀ c: the matrix is one for each head, and reads what is split into heads already;
    the keys have none.
    """

    def wider(gained: Gain) -> list[int]:
        known = [notes.projections[stop] for stop in gained.stops if stop in notes.projections]
        return [width - one.fan_in for one in known if (width := _made_of_heads(one)) is not None]

    found = wider(query)
    return sum(found) if found and not wider(key) else None


def _made_of_heads(projection: Projection) -> int | None:
    """How many entries a projection makes in each head that has a matrix of its own for what it reads; else None."""
    weight, read = projection.weight, projection.read.shape
    if weight is None or weight.dim() != 3 or len(read) != 4 or 1 in read[1:3] or projection.fan_in not in weight.shape:
        return None
    rest = list(weight.shape)
    rest.remove(projection.fan_in)
    return next((rest[1 - axis] for axis, size in enumerate(rest) if size in read[1:3]), None)
