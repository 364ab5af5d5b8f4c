"""Placing: tables and parameters of positions that stand behind what enters a model, and add nothing to tell by."""

from collections.abc import Iterator

import torch
from torch import Tensor

from surd.measure.trace.calls import LookUp, Seen
from surd.measure.trace.graph import walk_back
from surd.measure.trace.notes import Notes


def blank_positions(notes: Notes, lookup: LookUp, entering: Seen) -> str:
    """The name of positions that are added and all zero; "" where there are none."""
    places = _places(lookup)
    for other in _position_lookups(notes, lookup, entering):
        if other.ids.unique().numel() > 1 and not other.rows.rms:
            return notes.names.parameter(other.table, other.where.path)
    for parameter in _parameters(lookup, entering):
        wide = parameter.dim() >= 2 and parameter.shape[-1] == lookup.place.shape[-1] and parameter.shape[-2] >= places
        if wide and not bool(parameter.any()):
            return notes.names.parameter(parameter, "")
    return ""


def still_positions(notes: Notes, lookup: LookUp, entering: Seen) -> str:
    """The name of a table with a row for every place, of which all places get one; "" where there is none."""
    for other in _position_lookups(notes, lookup, entering):
        if places_differ(other.ids):
            return ""
    for other in _position_lookups(notes, lookup, entering):
        if other.table.shape[0] >= max(3, _places(lookup)):
            return notes.names.parameter(other.table, other.where.path)
    return ""


def places_differ(ids: Tensor) -> bool:
    """Whether ids differ along the last axis."""
    return ids.dim() > 0 and ids.shape[-1] > 1 and bool((ids != ids[..., :1]).any())


def _places(lookup: LookUp) -> int:
    return lookup.ids.shape[0 if lookup.turned else -1] if lookup.token and lookup.ids.dim() else 2


def _position_lookups(notes: Notes, lookup: LookUp, entering: Seen) -> Iterator[LookUp]:
    """Look-ups of something else than tokens that are part of what enters."""
    if entering.place is None:
        return
    met, _ = walk_back([entering.place.node], notes.origins.places)
    yield from (other for other in notes.lookups if not other.token and other.place.node in met)


def _parameters(lookup: LookUp, entering: Seen) -> Iterator[Tensor]:
    """Parameters on the way between rows and what enters, beside the table."""
    if entering.place is None:
        return
    _, passed = walk_back([entering.place.node], {lookup.place.node: lookup.place})
    for node in passed:
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and variable is not lookup.table:
            yield variable.detach() if not isinstance(variable, torch.nn.Parameter) else variable
