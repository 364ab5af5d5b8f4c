"""Scored: the scores of one attention, what hides them, by what number, and how much of the softmax stays on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.listeners.masked import Masking, parts_of
from surd.measure.reading.factors import products_behind
from surd.measure.sites import Role, Site
from surd.measure.trace.calls import Fused, Softmax
from surd.measure.trace.gains import HIDDEN
from surd.measure.trace.graph import Place, walk_back
from surd.measure.trace.notes import Notes
from surd.measure.trace.written import few, for_all_heads


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """The scores of one attention, and what of them the forward means to hide."""

    site: Site
    scores: Float[Tensor, "..."]
    """What the softmax reads."""
    axis: int
    hidden: Bool[Tensor, "..."] | None
    """None where no mask was heard."""
    fills: tuple[float, ...]
    """Of the masks that were heard, one each."""
    dtype: torch.dtype

    @property
    def square(self) -> bool:
        """As many queries as keys."""
        return (
            self.axis == self.scores.dim() - 1
            and self.scores.dim() > 1
            and self.scores.shape[-1] == self.scores.shape[-2]
        )

    @property
    def empty(self) -> int:
        """How many rows see no key at all."""
        return int((self.scores == -torch.inf).all(self.axis).sum())

    @property
    def seen(self) -> Bool[Tensor, "..."]:
        """What really takes part in the softmax."""
        return (self.scores > HIDDEN) & self.scores.isfinite()

    @property
    def meant(self) -> Bool[Tensor, "..."]:
        """What is meant to take part."""
        return self.seen if self.hidden is None else self.seen & ~self.hidden

    def mass(self, hidden: Bool[Tensor, "..."]) -> tuple[float, float] | None:
        """Mean mass of probability on hidden keys, and their mean share of the keys, over rows with both kinds."""
        weights = torch.softmax(self.scores.double(), self.axis)
        hidden = hidden.expand(self.scores.shape)
        # A row whose visible keys are as low as a mask makes them is hidden by another one: it is nobody's.
        empty = self.scores.masked_fill(hidden, -torch.inf).amax(self.axis) <= torch.finfo(self.dtype).min / 4
        rows = hidden.any(self.axis) & ~hidden.all(self.axis) & ~weights.isnan().any(self.axis) & ~empty
        if not bool(rows.any()):
            return None
        mass = weights.masked_fill(~hidden, 0.0).sum(self.axis)[rows]
        return float(mass.mean()), float(hidden.double().mean(self.axis)[rows].mean())

    def gap(self) -> float | None:
        """How far the highest hidden score stays below the lowest one that is meant to be seen, at least."""
        if self.hidden is None:
            return None
        hidden = self.hidden
        lowest = self.scores.masked_fill(hidden, torch.inf).amin(self.axis)
        highest = self.scores.masked_fill(~hidden, -torch.inf).amax(self.axis)
        rows = hidden.any(self.axis) & ~hidden.all(self.axis) & lowest.isfinite() & (highest < torch.inf)
        return float((lowest - highest)[rows].double().min()) if bool(rows.any()) else None


def read_scores(notes: Notes, maskings: Sequence[Masking]) -> list[Scored]:
    """Every attention whose scores are known, in the order of the calls."""
    found = []
    for call in notes.attention:
        one = _of_fused(call) if isinstance(call, Fused) else _of_softmax(notes, call, maskings)
        if one is not None:
            found.append(one)
    return found


def _of_fused(call: Fused) -> Scored | None:
    query, key = call.query.value, call.key.value
    if query is None or key is None or call.scale is None or call.backend != "sdpa" or not few(query, key):
        return None
    scores = query.float() @ for_all_heads(key, query).float().mT * call.scale
    hidden, fills = None, []
    if call.bias is not None:
        bias = call.bias.detach()
        scores = scores + bias.float()
        if (parts := parts_of(bias)) is not None:
            hidden, fills = parts[0].expand(scores.shape), [parts[1]]
    return Scored(
        site=_site(call), scores=scores, axis=scores.dim() - 1, hidden=hidden, fills=tuple(fills), dtype=query.dtype
    )


def _of_softmax(notes: Notes, call: Softmax, maskings: Sequence[Masking]) -> Scored | None:
    products = products_behind(notes, call)
    if not products or call.scores.place is None:
        return None
    scores = call.values.detach()
    hidden, fills = None, []
    for masking in _on_the_way(notes, call, maskings):
        if (mask := _in_shape(masking, scores.shape)) is not None:
            hidden = mask if hidden is None else hidden | mask
            fills.append(masking.fill)
    return Scored(
        site=_site(call), scores=scores.float(), axis=call.axis, hidden=hidden, fills=tuple(fills), dtype=scores.dtype
    )


def _all_products(notes: Notes) -> dict[Node, Place]:
    return {node: product.place for node, product in notes.products.items()}


def _on_the_way(notes: Notes, call: Softmax, maskings: Sequence[Masking]) -> list[Masking]:
    """Not those of a layer below, to which the ways of relative positions lead."""
    assert call.scores.place is not None, "products lie behind it"
    scores, products, beginnings = call.scores.place, _all_products(notes), notes.beginnings
    met, passed = walk_back([scores.node], {**beginnings, **products})
    nodes = {*met, *passed}  # a product may hold a bias of its own

    def of_all(masking: Masking) -> bool:
        """Not where a number that is no low one is written over one of several summands: the others stay seen."""
        if masking.added or masking.fill <= HIDDEN or masking.node is None or masking.node in products:
            return True
        beside, _ = walk_back([scores.node], {**beginnings, **products, masking.node: scores})
        return not any(node in products for node in beside)

    return [masking for masking in maskings if masking.node in nodes and of_all(masking)]


def _in_shape(masking: Masking, shape: torch.Size) -> Tensor | None:
    """The mask at every score, whatever axes were joined or parted since."""
    if masking.shape.numel() != shape.numel():
        return None
    try:
        return masking.hidden.expand(masking.shape).reshape(shape)
    except RuntimeError:
        return None


def _site(call: Fused | Softmax) -> Site:
    return Site(path=call.where.path, role=Role.SCORE, file=call.where.file, line=call.where.line)
