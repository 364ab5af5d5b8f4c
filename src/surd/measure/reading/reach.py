"""Reach: how much of one output's gradient comes from later positions, and how much from other rows of the batch."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.reading.factors import behind, sides
from surd.measure.reading.flow import length
from surd.measure.trace.gains import pull, signs
from surd.measure.trace.graph import Place, place_of
from surd.measure.trace.notes import Notes


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Of the output in the middle of the first row, at one source; shares of the gradient's norm."""

    source: str
    """The table, or the input."""
    own: bool
    """The output stands at this source's positions."""
    numbers: bool
    """The source is an input of numbers, whose order of axes nobody states."""
    earlier: float
    later: float
    other_rows: float
    one_column: bool
    """Several rows are reached, but only one position of each: the model mixes along the axis of the rows."""
    finite: bool


def read_reaches(notes: Notes, outputs: list[Tensor]) -> list[Reach]:
    """One backward pass with random signs; where nothing arrives the gradient is exactly zero."""
    output = next((x for x in outputs if x.requires_grad and x.dim() >= 2), None)
    found = _sources(notes)
    if output is None or not found:
        return []
    own = _asking(notes) or {found[-1][0].node}
    return [_reach(output, *source, source[0].node in own) for source in found]


def _sources(notes: Notes) -> list[tuple[Place, str, int, bool, bool]]:
    """Place, name, positions in a row, whether positions come before rows, whether it is numbers."""
    found = []
    for lookup in notes.lookups:
        pairs = lookup.ids.dim() > 2 and lookup.ids.shape[2:].numel() > 1  # of positions, as biases on scores have
        positions = length(notes, lookup) if lookup.token and not pairs else None
        if positions is not None:
            name = notes.names.parameter(lookup.table, lookup.where.path)
            found.append((lookup.place, name, positions, lookup.turned, False))
    for node, name in notes.inputs.items():
        place = notes.origins.places[node]
        found.append((place, name, place.shape[1] if len(place.shape) == 3 else 1, False, True))
    return found


def _asking(notes: Notes) -> frozenset[Node]:
    """What asks the other sequence first: the output stands at its positions."""
    for call in notes.attention:
        asked = sides(notes, call)
        if asked is not None:
            query, key = (behind(notes, side) & notes.content for side in asked)
            if query and key and query != key:
                return query
    return frozenset()


def _reach(output: Tensor, source: Place, name: str, positions: int, turned: bool, numbers: bool, own: bool) -> Reach:
    place = place_of(output)
    assert place is not None, "it requires a gradient"
    rows = source.shape.numel() // (positions * source.shape[-1]) if positions > 1 else source.shape[0]
    answers, row, at = _answers(place, rows, positions)
    moved = pull(place, source, answers)
    moved = torch.zeros(source.shape, device=source.device) if moved is None else moved
    moved = (moved.transpose(0, 1) if turned else moved).reshape(rows, positions, -1).double()
    whole = float(moved.norm()) or 1.0
    sizes = moved.norm(dim=-1)
    ours, others = sizes[row], torch.cat([sizes[:row], sizes[row + 1 :]])
    reached = sizes != 0
    fits = own and positions > 1 and place.shape.numel() == rows * positions * place.shape[-1]
    return Reach(
        source=name,
        own=fits,
        numbers=numbers,
        earlier=float(ours[:at].norm()) / whole,
        later=float(ours[at + 1 :].norm()) / whole,
        other_rows=float(others.norm()) / whole,
        one_column=positions > 1 and int(reached.any(0).sum()) == 1 and int(reached.any(1).sum()) > 1,
        finite=bool(moved.isfinite().all()),
    )


def _answers(place: Place, rows: int, positions: int) -> tuple[Tensor, int, int]:
    """Random signs at one position of the output, and which row and position of the source that is."""
    answers = signs(place)
    shown = torch.zeros_like(answers)
    at = positions // 2
    leading = tuple(place.shape[:2])
    if leading == place.shape == (rows, rows):
        # Samples beside samples, as two towers compare them: on the diagonal stands a sample with itself.
        shown[0, 0], at = answers[0, 0], 0
    elif len(place.shape) > 2 and leading == (positions, rows) and rows != positions:
        shown[at, 0] = answers[at, 0]
    elif len(place.shape) > 2 and leading == (rows, positions):
        shown[0, at] = answers[0, at]
    else:
        flat, out = answers.reshape(-1, place.shape[-1]), shown.view(-1, place.shape[-1])
        middle = max(1, len(flat) // rows) // 2
        out[middle] = flat[middle]
        at = min(middle, positions - 1)
    return shown, 0, at
