"""Unseen placeholders: those that a user has defined and that stand nowhere in what a run was trained on.

Their rows of the tables are as they were drawn at the start, so what a model makes of them is chance. It is noted when
the data are prepared, since a run may be used without them.
"""

from collections.abc import Mapping, Sequence

from surd.data.stream import SIDES, Prepared
from surd.data.tokenizer import TokenizerPair
from surd.errors import SurdError
from surd.files import read_json, write_json
from surd.run.folder import Run

UNSEEN = "unseen.json"
"""The note, beside the recipe; there is none where every placeholder was seen."""

Unseen = Mapping[str, Sequence[str]]
"""The placeholders by side."""


def look_for(data: Prepared, tokenizers: TokenizerPair, symbols: Sequence[str]) -> Unseen:
    """The placeholders that stand in no training pair, by side."""
    sides = {"source": tokenizers.source, "target": tokenizers.target}
    return {side: [one for one in symbols if not data.holds(side, sides[side].encode(one)[-1])] for side in SIDES}


def note(run: Run, unseen: Unseen) -> None:
    """Writes the note where there is something to tell."""
    if any(unseen.values()):
        write_json(run.folder / UNSEEN, unseen)


def unseen_by(*runs: Run) -> Unseen:
    """The placeholders that none of the runs has seen, by side."""
    notes = [_read(run) for run in runs]
    return {side: [one for one in notes[0][side] if all(one in each[side] for each in notes)] for side in SIDES}


def in_both(one: Unseen, other: Unseen) -> Unseen:
    """What neither has seen, of two trainings one of which went on from the other."""
    return {side: [symbol for symbol in one[side] if symbol in other[side]] for side in SIDES}


def _read(run: Run) -> Unseen:
    path = run.folder / UNSEEN
    if not path.exists():
        return {side: [] for side in SIDES}
    match read_json(path):
        case {"source": [*source], "target": [*target]} if all(isinstance(one, str) for one in (*source, *target)):
            return {"source": source, "target": target}
    raise SurdError(f"{path}: damaged, expected placeholders by side")
