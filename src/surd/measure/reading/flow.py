"""Flow: on what one output position depends, and by what positions are told apart."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.reading.factors import behind, sides
from surd.measure.sites import Flow
from surd.measure.trace.calls import Fused, LookUp, Softmax
from surd.measure.trace.gains import HIDDEN, pull, signs
from surd.measure.trace.graph import Place, place_of
from surd.measure.trace.notes import Notes

STEADY = 1e-5
"""Relative difference below which numbers at two positions are the same."""


@dataclass(frozen=True)
class _Source:
    place: Place
    name: str
    positions: int
    """Of one row; 1 for what has none, such as an image."""
    turned: bool
    """Positions come before rows."""


def read_flows(notes: Notes, outputs: list[Tensor]) -> list[Flow]:
    """What the middle position of the first row depends on, at every table of tokens and every input of numbers.

    One backward pass with random signs on that position's outputs; what it does not depend on gets exactly zero.
    """
    output = next((x for x in outputs if x.requires_grad and x.dim() >= 2), None)
    sources = _sources(notes)
    if output is None or not sources:
        return []
    own = asking(notes) or {sources[-1].place.node}
    return [_flow(source, output, source.place.node in own) for source in sources]


def _sources(notes: Notes) -> list[_Source]:
    found = []
    for lookup in notes.lookups:
        positions = length(notes, lookup) if lookup.token else None
        if positions is not None:
            name = notes.names.parameter(lookup.table, lookup.where.path)
            found.append(_Source(lookup.place, name, positions, lookup.turned))
    for node, name in notes.inputs.items():
        place = notes.origins.places[node]
        found.append(_Source(place, name, place.shape[1] if len(place.shape) == 3 else 1, turned=False))
    return found


def asking(notes: Notes) -> frozenset[Node]:
    """What asks the other sequence first: the output stands at its positions."""
    for call in notes.attention:
        asked = sides(notes, call)
        if asked is not None:
            query, key = (behind(notes, side) & notes.content for side in asked)
            if query and key and query != key:
                return query
    return frozenset()


def _flow(source: _Source, output: Tensor, own: bool) -> Flow:
    place, positions = place_of(output), source.positions
    assert place is not None, "it requires a gradient"
    numbers = source.place.shape.numel()
    rows = numbers // (positions * source.place.shape[-1]) if positions > 1 else source.place.shape[0]
    answers = signs(place).reshape(-1, output.shape[-1])
    middle = max(1, len(answers) // rows) // 2
    shown = torch.zeros_like(answers)
    shown[middle] = answers[middle]
    moved = pull(place, source.place, shown.view(place.shape))
    moved = torch.zeros(source.place.shape) if moved is None else moved
    moved = moved.transpose(0, 1) if source.turned else moved
    seen = (moved != 0).reshape(rows, positions, -1).any(-1)
    at = min(middle, positions - 1)
    return Flow(
        source=source.name,
        sees_earlier=bool(seen[0, :at].any()),
        sees_itself=bool(seen[0, at : at + 1].any()),
        sees_later=bool(seen[0, at + 1 :].any()),
        sees_other_rows=bool(seen[1:].any()),
        own=own and positions > 1 and len(answers) == rows * positions,
    )


def length(notes: Notes, lookup: LookUp) -> int | None:
    """Positions in a row; ids without a batch axis are cut as the attention that reads them cuts them."""
    if lookup.ids.dim() > 1:
        return lookup.ids.shape[0 if lookup.turned else 1]
    for call in notes.attention:
        if isinstance(call, Fused) and call.query.place is not None:
            origins, queries = notes.origins.of(call.query.place.node), call.query.shape[-2]
        elif isinstance(call, Softmax) and call.scores.place is not None:
            origins, queries = notes.origins.of(call.scores.place.node), call.values.shape[-2]
        else:
            continue
        if lookup.place.node in origins and lookup.ids.numel() % queries == 0:
            return queries
    return None


def read_positions(notes: Notes, lookup: LookUp) -> str | None:
    """How a model that was given one and the same token everywhere still tells positions apart."""
    positions = length(notes, lookup)
    if positions is None:
        return None
    width = lookup.place.shape[-1]
    values = [candidate.value for candidate in lookup.candidates.values() if candidate.shape[-1] == width]
    entering = values[-1] if values else None
    if entering is None:
        return None
    entering = entering.transpose(0, 1) if lookup.turned else entering
    if _varies(entering.reshape(-1, positions, width), 1):
        return "added"
    for call in notes.attention:
        asked = sides(notes, call)  # in an encoder-decoder, perhaps those of the other one
        query = None if asked is None else asked[0].value
        if asked is not None and query is not None and lookup.place.node in behind(notes, asked[0]):
            turned = any(_varies(query, axis) for axis in range(query.dim() - 1) if query.shape[axis] == positions)
            scores = call.bias if isinstance(call, Fused) else call.values
            return "rotary" if turned else "bias" if scores is not None and _uneven(scores) else "none"
    return None


def _uneven(scores: Tensor) -> bool:
    """Whether the scores of one query differ between keys that it sees."""
    if not scores.is_floating_point():
        return False
    seen = (scores > HIDDEN) & scores.isfinite()
    spread = scores.where(seen, -torch.inf).amax(-1) - scores.where(seen, torch.inf).amin(-1)
    return bool((spread > STEADY).any())


def _varies(x: Tensor, axis: int) -> bool:
    """Whether numbers differ along an axis; the first position is left out, where a rotation turns nothing."""
    if x.shape[axis] < 3:
        return False
    later = x.narrow(axis, 1, x.shape[axis] - 1).float()
    difference = (later - later.narrow(axis, 0, 1)).abs().max()
    return bool(difference > STEADY * later.abs().max())
