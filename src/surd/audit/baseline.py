"""Baselines: findings that are known and accepted, so that only new ones make a check fail."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from surd.audit.finding import Finding
from surd.audit.judge import Report
from surd.errors import SurdError
from surd.files import read_json, write_json

VERSION = 1
CLOSE = 0.05
"""Relative difference up to which a number is the one that was known."""


def write_baseline(report: Report, path: Path) -> None:
    """All findings of a report that fail, as accepted from now on."""
    known = [
        {"rule": one.rule, "sites": list(one.sites), "quantity": one.quantity, "measured": _plain(one.measured)}
        for one in report.failing
    ]
    write_json(path, {"version": VERSION, "subject": report.subject, "structure": report.structure, "known": known})


def without_known(report: Report, path: Path) -> Report:
    """The report without the findings of a baseline; a known one that has grown worse, or wider, is told again."""
    known = _known(path, report)
    findings = tuple(one for one in report.findings if not (one.severity.fails and _is_known(one, known)))
    hidden = len(report.findings) - len(findings)
    note = f"{hidden} known {'finding' if hidden == 1 else 'findings'} of {path} not told"
    return replace(report, findings=findings, notes=(*report.notes, note), known=hidden) if hidden else report


def read_baseline(path: Path) -> Mapping[str, Any]:
    """The content of a baseline, of whatever model; what is none is refused."""
    found = read_json(path)
    known = found.get("known") if isinstance(found, dict) else None
    if not isinstance(known, list) or not all(isinstance(one, dict) for one in known):
        raise SurdError(f'{path}: not a baseline: expected {{"known": [...]}}, as `--write-baseline` writes it')
    if found.get("version") != VERSION:
        raise SurdError(f"{path}: a baseline of version {found.get('version')}; this surd reads version {VERSION}")
    return found


def _known(path: Path, report: Report) -> list[Mapping[str, Any]]:
    found = read_baseline(path)
    if found.get("structure") != report.structure:
        of, called = found.get("subject"), report.subject
        names = f"one that was also called {of}" if of == called else f"{of}, and this is {called}"
        raise SurdError(
            f"{path}: a baseline of another model, of {names}: names or shapes of the weights differ. Write a new one "
            f"with --write-baseline {path}"
        )
    return found["known"]


def _is_known(finding: Finding, known: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        one.get("rule") == finding.rule
        and one.get("quantity") == finding.quantity
        and set(finding.sites) <= set(one.get("sites", ()))
        and _alike(one.get("measured"), _plain(finding.measured))
        for one in known
    )


def _alike(before: object, now: object) -> bool:
    if isinstance(before, int | float) and isinstance(now, int | float):
        return abs(now - before) <= CLOSE * abs(before)
    return before == now


def _plain(value: object) -> object:
    """A number that JSON cannot hold is told in words."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value
