"""Reach: how much of one output's gradient comes from later positions, and how much from other rows of the batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surd.measure.reading.flow import asking, length
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
    step: float
    """Between 1 and the next number of the output's type: a share as small is what rounding leaves of nothing."""
    samples: bool = True
    """The rows of the source are samples, as far as the output tells."""


def read_reaches(notes: Notes, outputs: list[Tensor]) -> list[Reach]:
    """One backward pass with random signs; where nothing arrives the gradient is exactly zero."""
    output = next((x for x in outputs if x.requires_grad and x.dim() >= 2), None)
    found = _sources(notes)
    if output is None or not found:
        return []
    own = asking(notes) or {found[-1][0].node}
    return [_reach(notes, output, *source, source[0].node in own) for source in found]


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


def _reach(
    notes: Notes, output: Tensor, source: Place, name: str, positions: int, turned: bool, numbers: bool, own: bool
) -> Reach:
    place = place_of(output)
    assert place is not None, "it requires a gradient"
    rows = source.shape.numel() // (positions * source.shape[-1]) if positions > 1 else source.shape[0]
    answers, row, at = _answers(place, rows, positions)
    moved = pull(place, source, answers)
    moved = torch.zeros(source.shape, device=source.device) if moved is None else moved
    apart = numbers and _one_of_another_axis(moved, _batches(notes, place))
    moved = (moved.transpose(0, 1) if turned else moved).reshape(rows, positions, -1).double()
    whole = float(moved.norm()) or 1.0
    sizes = moved.norm(dim=-1)
    if row is None:  # an output of no plain order belongs to the row that it reaches most
        row = int(sizes.norm(dim=1).nan_to_num().argmax())
    groups = _groups(notes, rows) if numbers and positions == 1 else None
    others = sizes[torch.arange(rows) != row] if groups is None else sizes[(groups != groups[row]).cpu()]
    ours = sizes[row]
    reached = sizes != 0
    fits = own and positions > 1 and place.shape.numel() == rows * positions * place.shape[-1]
    return Reach(
        source=name,
        own=fits,
        numbers=numbers,
        earlier=float(ours[:at].norm()) / whole,
        later=float(ours[at + 1 :].norm()) / whole,
        other_rows=0.0 if apart else float(others.norm()) / whole,
        one_column=positions > 1 and int(reached.any(0).sum()) == 1 and int(reached.any(1).sum()) > 1,
        finite=bool(moved.isfinite().all()),
        step=torch.finfo(place.dtype).eps,
        samples=groups is not None or len(source.shape) > 2 or not numbers or place.shape[:-1].numel() % rows == 0,
    )


def _batches(notes: Notes, place: Place) -> set[int]:
    """How many samples there are: as many as rows of the output, or of tokens."""
    looked_up = {lookup.ids.shape[lookup.turned] for lookup in notes.lookups if lookup.token and lookup.ids.dim() > 1}
    return {place.shape[0], *looked_up} - {1}


def _one_of_another_axis(moved: Tensor, batches: set[int]) -> bool:
    """Whether samples stand on an inner axis, as in memories of (layers, batch, length, width): one is reached."""
    inner = [axis for axis in range(1, moved.dim() - 1) if moved.dim() > 3 and moved.shape[axis] in batches]
    return any(len((moved != 0).nonzero()[:, axis].unique()) == 1 for axis in inner)


def _groups(notes: Notes, rows: int) -> Tensor | None:
    """Integers, one a row, that say which rows belong together: nodes of one graph, of many in a heap."""
    fit = [x for x in notes.given if x.dim() == 1 and x.numel() == rows and 1 < len(x.unique()) < rows]
    return fit[0] if fit else None


def _answers(place: Place, rows: int, positions: int) -> tuple[Tensor, int | None, int]:
    """Random signs at one position of the output, and which row and position of the source that is.

    Of axes in another order than the source's, such as heads in front of the batch, the row is not known beforehand.
    """
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
        return shown, 0 if len(place.shape) == 2 and len(flat) == rows else None, at
    return shown, 0, at
