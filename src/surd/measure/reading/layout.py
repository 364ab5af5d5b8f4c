"""Layout: from which tokens the queries, keys and values of one head come.

A head of n keys must hold slices of n different tokens, and what an output position is made of must have been asked by
its own token. Both are read by pulling one entry back through views and transposes: what is not reached gets an exact
zero, in any style of writing, with any mask and any order of axes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surd.measure.reading.factors import products_behind
from surd.measure.reading.row_sums import site_of, sums_over
from surd.measure.sites import Site
from surd.measure.trace.calls import Fused, Projection, Seen, Softmax
from surd.measure.trace.gains import pull, signs
from surd.measure.trace.graph import Place, Stops, walk_back
from surd.measure.trace.notes import Notes

MIXED = "an entry of a query or key depends on several tokens: no layout can be read"
AGAIN = "the values reach the output also by what asks for them, so that they cannot be told apart"
ACROSS = "the values of one key come from several tokens: what attends are channels, or sums over positions"
ONE = "values and keys are one tensor: what reaches the output as a value cannot be told from what asks for it"
FAINT = 1e-12
"""A weight below this share of the largest is that of a hidden key."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Of one attention; a number is None where it could not be read, as `reason` says."""

    site: Site
    keys: int | None = None
    """How many keys the last row sees."""
    key_tokens: int | None = None
    """From how many different tokens they come."""
    value_tokens: int | None = None
    asking: int | None = None
    """How many tokens asked for what the output projection reads at one token: 1."""
    astray: bool = False
    """It was one token, but another one."""
    channels: bool = False
    """Channels attend to channels."""
    several: bool = False
    """An entry of a query or key is made of several tokens, as a mean of them is."""
    reason: str = ""


def read_layouts(notes: Notes) -> list[Layout]:
    """Every attention, in order; softmaxes over something else are left out."""
    found = []
    mixes = [_mix(call) for call in notes.attention]
    stops = {mix.place.node: mix.place for mix in mixes if mix is not None and mix.place is not None}
    for call, mix in zip(notes.attention, mixes, strict=True):
        operands = _operands(notes, call)
        if operands is not None:
            several = any(_several(notes, operand.place) for operand in operands[:2])
            found.append(replace(_layout(notes, call, operands, mix, stops), several=several))
    return found


def _operands(notes: Notes, call: Fused | Softmax) -> tuple[Seen, Seen, Seen | None, int] | None:
    if isinstance(call, Fused):
        return call.query, call.key, call.value, call.query.shape[-1]
    products = products_behind(notes, call)
    if not products:
        return None
    return products[0].left, products[0].right, call.mixed[0][0] if call.mixed else None, products[0].d_k


def _mix(call: Fused | Softmax) -> Seen | None:
    if isinstance(call, Fused):
        return call.mix
    return call.mixed[0][1] if call.mixed else None


def _layout(
    notes: Notes,
    call: Fused | Softmax,
    operands: tuple[Seen, Seen, Seen | None, int],
    mix: Seen | None,
    mixes: Stops,
) -> Layout:
    site = site_of(call)
    query, key, value, d_k = operands
    if mix is None or mix.place is None or query.place is None or key.place is None:
        return Layout(site=site, reason="what the weights mix was not seen")
    if value is not None and value.place is not None and value.place.edge in (query.place.edge, key.place.edge):
        return Layout(site=site, reason=ONE)
    last = torch.zeros(mix.shape, dtype=mix.place.dtype, device=mix.place.device)
    last.view(-1)[-1] = 1
    reached = None if value is None or value.place is None else pull(mix.place, value.place, last)
    # One entry of the mix adds up one entry of every value that its row sees.
    keys = None if reached is None else int(_plain(reached).sum())
    if keys is not None and keys > _summed(notes, call, mix.place):
        return Layout(site=site, reason=AGAIN)
    query, key = _in_order(mix.place, query, key, keys, d_k, last)
    if query.place is None or key.place is None:
        return Layout(site=site, reason="what the weights mix was not seen")
    # Through a softmax over another axis than the keys every query reaches every output: that is told elsewhere.
    asking, astray = (None, False) if _sideways(notes, call) else _asking(notes, mix.place, query.place, mixes)
    value_tokens = None if reached is None or value is None else _count(notes, value.place, _plain(reached))
    key_tokens = None if keys is None else _key_tokens(notes, key.place, pull(mix.place, key.place, last), keys, d_k)
    fewer = [x for x in (key_tokens, value_tokens) if x is not None and keys is not None and x < keys]
    if fewer or astray or (asking or 1) > 1:
        places = [x.place for x in (query, key, value) if x is not None and x.place is not None]
        channels = reached is not None and value is not None and _channels(notes, mix.place, value.place, reached)
        if channels or any(_across(notes, place) for place in places):
            return Layout(site=site, channels=channels, reason=ACROSS)
    return Layout(
        site=site,
        keys=keys,
        key_tokens=key_tokens,
        value_tokens=value_tokens,
        asking=asking,
        astray=astray,
        reason=MIXED if asking is None and (keys is None or (key_tokens is None and value_tokens is None)) else "",
    )


def _summed(notes: Notes, call: Fused | Softmax, mix: Place) -> int:
    """Over how many keys one entry of the mix is a sum, at most."""
    if isinstance(call, Fused):
        return call.key.shape[-2]
    product = notes.products.get(mix.node)
    return max(call.values.shape) if product is None else product.d_k


def _several(notes: Notes, operand: Place | None) -> bool:
    """Whether one entry of a query or key depends on several tokens."""
    if operand is None:
        return False
    one = torch.zeros(operand.shape, dtype=operand.dtype, device=operand.device)
    one.view(-1)[-1] = 1
    tokens = _tokens(notes, operand, one)
    return tokens is not None and int(tokens.sum()) > 1


def _channels(notes: Notes, mix: Place, value: Place | None, reached: Tensor) -> bool:
    """Whether a value is one entry of every token of its row: channels attend to channels (El-Nouby et al. 2021).

    Heads that are cut wrongly hold some tokens of a row only.
    """
    where = _plain(reached).nonzero()
    axes = [axis for axis in range(reached.dim()) if len(where[:, axis].unique()) > 1]
    if len(axes) != 1 or value is None:
        return False
    key = torch.zeros_like(reached, dtype=torch.bool)
    key.select(axes[0], int(where[-1, axes[0]])).fill_(True)
    for axis in range(len(mix.shape)):
        several = torch.zeros(mix.shape, dtype=mix.dtype, device=mix.device)
        several.movedim(axis, -1)[(-1,) * (len(mix.shape) - 1)] = 1
        one = pull(mix, value, several)
        support = None if one is None else _plain(one) & key
        tokens = None if support is None else _tokens(notes, value, signs(value) * support)
        if support is None or tokens is None:
            continue
        rows = [tokens.shape[place] for place in (0, 1) if place < tokens.dim() and tokens.shape[place] in _rows(notes)]
        whole = {tokens.numel() // count for count in rows or (_rows(notes) if tokens.dim() == 1 else ())}
        entries = int(support.sum())
        if entries > 1 and entries == int(tokens.sum()) and entries in whole:
            return True
    return False


def _across(notes: Notes, operand: Place) -> bool:
    """Whether a projection behind an operand sums over positions (Wang et al. 2020, arXiv 2006.04768), not features."""
    stops = {node: one.place for node, one in notes.projections.items()}
    for node in walk_back([operand.node], {**stops, **notes.origins.places})[0]:
        projection = notes.projections.get(node)
        if projection is None or projection.read.place is None or (axis := _feature_axis(projection)) is None:
            continue
        read = projection.read.place
        summed = torch.zeros(read.shape, dtype=read.dtype, device=read.device)
        summed.movedim(axis, -1)[(-1,) * (len(read.shape) - 1)] = 1
        tokens = _tokens(notes, read, summed)
        if tokens is not None and int(tokens.sum()) > 1:
            return True
    return False


def _in_order(mix: Place, left: Seen, right: Seen, keys: int | None, d_k: int, last: Tensor) -> tuple[Seen, Seen]:
    """Query and key: one row reaches a single query, but all keys, on whichever side of the product they stand."""
    if keys is None or keys < 2 or left.place is None or right.place is None:
        return left, right
    reached = [pull(mix, place, last) for place in (left.place, right.place)]
    counts = [0 if one is None else int((one != 0).sum()) for one in reached]
    return (right, left) if counts == [keys * d_k, d_k] else (left, right)


def _sideways(notes: Notes, call: Fused | Softmax) -> bool:
    """Whether a softmax runs over another axis than the one over which its weights mix."""
    if isinstance(call, Fused) or not call.mixed or (weights := notes.weights_of(call)) is None:
        return False
    mix = call.mixed[0][1].place
    sums = None if mix is None else sums_over(site_of(call), weights, mix, call.values, call.axis)
    return sums is not None and sums.axis != sums.mixed


def _plain(reached: Tensor) -> Tensor:
    """Entries that are reached by more than what rounding leaves of a hidden key."""
    return reached.abs() > FAINT * reached.abs().max()


def _key_tokens(notes: Notes, key: Place, reached: Tensor | None, keys: int, d_k: int) -> int | None:
    """From how many tokens the keys of one row come; None unless the gradient reaches all of them."""
    if reached is None or int((reached != 0).sum()) != keys * d_k:
        return None
    return _count(notes, key, reached != 0)


def _count(notes: Notes, operand: Place | None, support: Tensor) -> int | None:
    """Tokens behind some entries of an operand; None where a single entry already depends on several."""
    if operand is None or not bool(support.any()):
        return None
    tokens = _tokens(notes, operand, signs(operand) * support)
    one = torch.zeros(support.shape, dtype=operand.dtype, device=operand.device)
    one[tuple(support.nonzero()[-1])] = 1
    single = _tokens(notes, operand, one)
    if tokens is None or single is None or int(single.sum()) != 1:
        return None
    return int(tokens.sum())


def _asking(notes: Notes, mix: Place, query: Place, mixes: Stops) -> tuple[int | None, bool]:
    """How many tokens asked for what the output projection reads at its last token; whether it was another one."""
    projection = _output_projection(notes, mix, mixes)
    if projection is None or projection.read.place is None:
        return None, False
    read = projection.read.place
    axis = _feature_axis(projection)
    if axis is None:
        return None, False
    drawn = signs(read).movedim(axis, -1)
    flat = torch.zeros_like(drawn).reshape(-1, drawn.shape[-1])
    flat[-1] = drawn.reshape(flat.shape)[-1]
    asked = pull(read, query, flat.view(drawn.shape).movedim(-1, axis))
    if asked is None or not bool((asked != 0).any()) or not bool(asked.isfinite().all()):
        return None, False
    count = _count(notes, query, asked != 0)
    tokens = _tokens(notes, query, signs(query) * (asked != 0))
    if count is None or tokens is None:
        return None, False
    same_order = tokens.numel() == len(flat)
    if tokens.dim() == 2 and tokens.shape[0] != tokens.shape[1]:
        # Other rows of the batch at the same position are no matter of layout within a row.
        rows = [axis for axis in (0, 1) if tokens.shape[axis] in _rows(notes)]
        tokens = tokens.any(rows[0]) if rows else tokens
    tokens = tokens.flatten()
    count = int(tokens.sum())
    return count, count == 1 and same_order and not bool(tokens[-1])


def _rows(notes: Notes) -> set[int]:
    """How many rows the batch has."""
    found = {lookup.ids.shape[lookup.turned] for lookup in notes.lookups if lookup.token and lookup.ids.dim() > 1}
    return found | {notes.origins.places[node].shape[0] for node in notes.inputs}


def _output_projection(notes: Notes, mix: Place, mixes: Stops) -> Projection | None:
    """The first projection that reads the mix, and nothing projected or mixed since."""
    stops = {**{node: one.place for node, one in notes.projections.items()}, **notes.origins.places, **mixes}
    for projection in notes.projections.values():
        place = projection.read.place
        met, passed = walk_back([place.node], stops) if place is not None else ({}, [])
        if mix.node in met:
            return None if any(node in notes.products for node in passed) else projection
    return None


def _tokens(notes: Notes, operand: Place, vector: Tensor) -> Tensor | None:
    """Which tokens, of those that the projections behind an operand read, a vector on it depends on."""
    stops = {node: one.place for node, one in notes.projections.items()}
    met, _ = walk_back([operand.node], {**stops, **notes.origins.places})
    found: Tensor | None = None
    for node in met:
        projection = notes.projections.get(node)
        place = notes.origins.places[node] if projection is None else projection.read.place
        axis = -1 if projection is None else _feature_axis(projection)
        if place is None or axis is None:
            continue
        pulled = pull(operand, place, vector)
        if pulled is None:
            continue
        if not bool(pulled.isfinite().all()):
            return None  # no number is no zero: it tells of no token
        touched = (pulled != 0).any(axis)
        if found is not None and found.shape != touched.shape:
            return None
        found = touched if found is None else found | touched
    return found


def _feature_axis(projection: Projection) -> int | None:
    """The axis of what a projection reads that it sums over; convolutions have it behind the rows."""
    shape, weight = projection.read.shape, projection.weight
    if weight is None or shape[-1] in weight.shape:
        return -1
    if weight.dim() == len(shape) and weight.dim() > 2 and shape[1] == weight.shape[1]:
        return 1
    return -2 if len(shape) > 1 and shape[-2] in weight.shape else None
