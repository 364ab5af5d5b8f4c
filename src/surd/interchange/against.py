"""Against: opens what a model is compared with: another model, or a word for the same model in another state."""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from surd.audit.compare import compared
from surd.audit.evidence import Evidence
from surd.audit.judge import Report
from surd.audit.refuse import refuse_numberless
from surd.audit.side_by_side import side_by_side
from surd.audit.states import STATES, Beside
from surd.audit.subject import Subject
from surd.errors import SurdError, nearest
from surd.interchange.checking import told
from surd.interchange.opening import exists
from surd.interchange.saved import saved

SAVED = "saved"
WORDS = (*STATES, SAVED)
"""A folder of such a name is meant by ./NAME."""


def judged_against(
    open_mine: Callable[[], Subject],
    against: Any,
    open_theirs: Callable[[], Subject],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    static: bool = False,
) -> Report:
    """The report of the comparison. What models print goes to stderr, for stdout is the report's."""
    with redirect_stdout(sys.stderr), told():
        subject = open_mine()
        refuse_numberless(subject.weights)
        word = against if isinstance(against, str) and against in WORDS else None
        if word is not None and static:
            raise SurdError(f"check: {against} compares two ways to run one model, and nothing is to be run")
        if word is not None:
            beside = saved(subject, open_mine) if word == SAVED else STATES[word](subject)
            report = _report(beside, select, ignore, False)
        else:
            _refuse_misspelt(against)
            other = open_theirs()
            refuse_numberless(other.weights)
            mine, theirs, same = side_by_side(subject, other, static)
            report = _report(Beside(mine=mine, theirs=theirs, same_inputs=same), select, ignore, static)
    if report.blind and not report.failing:
        raise SurdError(f"{subject.name}: {report.blind}")
    return report


def _refuse_misspelt(against: Any) -> None:
    """What is no path and nearly one of the words was meant to be one."""
    if not isinstance(against, str) or ":" in against or not against or exists(Path(against)):
        return
    if guess := nearest(against, WORDS):
        raise SurdError(f"{against}: neither a model nor a state of this one. Did you mean {guess}?")


def _report(beside: Beside, select: Sequence[str], ignore: Sequence[str], static: bool) -> Report:
    mine: Evidence = beside.mine
    return compared(
        mine,
        beside.theirs,
        same_inputs=beside.same_inputs,
        select=select,
        ignore=ignore,
        static=static or (mine.subject.module is None and beside.theirs.subject.module is None),
        further=beside.further,
        looked=beside.looked,
    )
