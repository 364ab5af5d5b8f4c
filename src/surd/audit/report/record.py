"""A report as JSON, of the form that `schema.json` beside this file publishes."""

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from surd.audit.finding import Finding
from surd.audit.judge import Report

SCHEMA = Path(__file__).parent / "schema.json"
VERSION = 1


def as_json(report: Report) -> str:
    """All of it, indented."""
    return json.dumps(record(report), indent=2, ensure_ascii=False, allow_nan=False)


def record(report: Report) -> dict[str, Any]:
    """Plain values; a number that is not finite is written as text."""
    return {
        "version": VERSION,
        "subject": report.subject,
        "clean": report.clean,
        "trained": report.trained,
        "structure": report.structure,
        "findings": [finding(one) for one in report.findings],
        "passed": list(report.passed),
        "skipped": [{"rule": one.rule, "site": one.site, "reason": one.reason} for one in report.skipped],
        "ledger": [_plain(asdict(line)) for line in report.ledger],
        "sizes": [
            _plain({"site": one.site.name, "rms": one.rms, "gradient": one.gradient})
            for one in (report.trace.readings if report.trace else ())
        ],
        "notes": list(report.notes),
    }


def finding(one: Finding) -> dict[str, Any]:
    """One finding, its consequences inside."""
    plain = {name: value for name, value in vars(one).items() if name not in ("consequences", "sites", "severity")}
    return {
        "rule": one.rule,
        "severity": str(one.severity),
        **_plain(plain),
        "sites": list(one.sites),
        "consequences": [finding(follower) for follower in one.consequences],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN."""
    return {
        name: str(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in values.items()
    }
