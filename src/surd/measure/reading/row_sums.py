"""Row sums: over which axis the weights of a softmax mix values, and what they add up to over it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.reading.factors import products_behind
from surd.measure.sites import Role, Site
from surd.measure.tensors import rms
from surd.measure.trace.calls import Fused, Product, Seen, Softmax
from surd.measure.trace.gains import pull
from surd.measure.trace.graph import Place, parents, walk_back
from surd.measure.trace.notes import Notes

CUT = 1e-3
"""Weights above this that are zero where they mix were set to zero."""


@dataclass(frozen=True, kw_only=True)
class RowSums:
    """Sums of a softmax's weights over the keys that are mixed: 1 each."""

    site: Site
    mean: float
    std: float
    axis: int
    """Over which the softmax ran."""
    mixed: int
    """Over which values are mixed."""
    by_hand: bool = False
    cut: bool = False
    """Weights were set to zero behind the softmax, and not made to add up again."""


def read_row_sums(notes: Notes) -> list[RowSums]:
    """Of every softmax of a product whose weights mix something, and of those that are written out as exp and sum."""
    found = []
    for call in notes.attention:
        if isinstance(call, Softmax) and call.mixed and products_behind(notes, call):
            weights, mix = notes.weights_of(call), call.mixed[0][1].place
            if weights is not None and mix is not None:
                sums = sums_over(site_of(call), weights, mix, torch.softmax(call.values.double(), call.axis), call.axis)
                if sums is not None:
                    found.append(_as_mixed(notes, call, sums) or _made_even(notes, call, sums) or sums)
    for product in notes.products.values():
        found += [] if product.mixes else _by_hand(notes, product)
    return found


def site_of(call: Fused | Softmax) -> Site:
    """Where an attention stands."""
    return Site(path=call.where.path, role=Role.SCORE, file=call.where.file, line=call.where.line)


def sums_over(
    site: Site, weights: Place, mix: Place, values: Tensor, axis: int, by_hand: bool = False
) -> RowSums | None:
    """Over the axis that one entry of the mix adds up; None where it cannot be told which that is."""
    last = torch.zeros(mix.shape, dtype=mix.dtype, device=mix.device)
    last.view(-1)[-1] = 1
    reached = pull(mix, weights, last)
    if reached is None or reached.shape != values.shape:
        return None
    where = (reached != 0).nonzero()
    varying = [one for one in range(reached.dim()) if len(where) and len(where[:, one].unique()) > 1]
    if len(varying) != 1:
        return None
    sums = values.double().sum(varying[0])
    sums = sums[sums.isfinite()]
    if not sums.numel():
        return None
    std = float(sums.std(unbiased=False)) if sums.numel() > 1 else 0.0
    return RowSums(site=site, mean=float(sums.mean()), std=std, axis=axis, mixed=varying[0], by_hand=by_hand)


def _as_mixed(notes: Notes, call: Softmax, sums: RowSums) -> RowSums | None:
    """The sums of what was mixed, where that is the softmax with some weights set to zero."""
    weights = _weighing(notes, call)
    if weights is None or weights.value is None or weights.value.numel() != call.values.numel():
        return None
    mixed = weights.value.double().reshape(call.values.shape)
    whole = torch.softmax(call.values.double(), call.axis).nan_to_num()
    zeroed = (mixed == 0) & (whole > CUT)
    if not bool(zeroed.any()) or rms(mixed - whole.masked_fill(zeroed, 0)) > CUT * rms(whole):
        return None
    rows = mixed.sum(sums.mixed)
    return replace(sums, mean=float(rows.mean()), std=float(rows.std(unbiased=False)), cut=True)


def _weighing(notes: Notes, call: Softmax) -> Seen | None:
    """What the values are multiplied with, whatever was done to the softmax before."""
    value = call.mixed[0][0]
    sides = next(((x.left, x.right) for x in notes.products.values() if value in (x.left, x.right)), None)
    return None if sides is None else sides[0] if sides[1] is value else sides[1]


def _made_even(notes: Notes, call: Softmax, sums: RowSums) -> RowSums | None:
    """The sums of what was mixed, where they were made 1 behind the softmax (Locatello et al. 2020, algorithm 1)."""
    mix, weights = call.mixed[0][1], _weighing(notes, call)
    if sums.axis == sums.mixed or mix.place is None or weights is None or weights.place is None:
        return None
    if weights.value is None or weights.value.shape != weights.place.shape:
        return None
    again = sums_over(sums.site, weights.place, mix.place, weights.value, sums.axis)
    if again is None or abs(again.mean - 1) > CUT or again.std > CUT:
        return None
    return replace(sums, mean=again.mean, std=again.std)


def _by_hand(notes: Notes, product: Product) -> Sequence[RowSums]:
    """A product with what exp made of a product: a softmax without a name."""
    stops = {node: one.place for node, one in notes.products.items() if one is not product}
    stops |= {**{node: one.place for node, one in notes.projections.items()}, **notes.origins.places}
    for side in (product.left, product.right):
        if side.place is None or side.value is None or side.place.node is product.place.node:
            continue
        _, passed = walk_back([side.place.node], stops)
        exps = [node for node in passed if node.name().startswith("ExpBackward")]
        if any(node in notes.products for node in walk_back(exps, stops)[0]):
            if _divided_behind(notes, product, exps):
                return []
            site = Site(path=product.where.path, role=Role.SCORE, file=product.where.file, line=product.where.line)
            sums = sums_over(site, side.place, product.place, side.value, -1, by_hand=True)
            return [] if sums is None else [sums]
    return []


def _divided_behind(notes: Notes, product: Product, exps: Sequence[Node]) -> bool:
    """Whether what is mixed is divided by what the same weights add up to (Milakov & Gimelshein 2018)."""
    mix = {product.place.node: product.place}
    stops = {**{node: one.place for node, one in notes.projections.items()}, **notes.origins.places, **mix}
    for projection in notes.projections.values():
        place = projection.read.place
        met, passed = walk_back([place.node], stops) if place is not None else ({}, [])
        if product.place.node in met:
            break
    else:
        return False
    for node in passed:
        sides = parents(node)
        if len(sides) == 2 and node.name().startswith(("Mul", "Div")):
            ways = [walk_back([side], stops) for side in sides]
            mixed = [product.place.node in met for met, _ in ways]
            weighed = [any(one in way for one in exps) for _, way in ways]
            if (mixed[0] and weighed[1]) or (mixed[1] and weighed[0]):
                return True
    return False
