"""A report as text for 80 columns, the verdict first."""

from collections.abc import Iterator
from textwrap import wrap

from surd.audit.finding import Finding
from surd.audit.judge import Report
from surd.audit.report.words import (
    expected,
    line_of_code,
    looked,
    mend,
    not_looked,
    number,
    places,
    source,
    verdict,
)

WIDTH = 80
HEAD = "Not looked at:"


def table(report: Report) -> str:
    """Verdict, findings with their consequences, and what could not be looked at."""
    lines = [*_wrapped(verdict(report), ""), looked(report)]
    lines += [line for note in report.notes for line in _wrapped(note, "")]
    for finding in report.findings:
        lines += ["", *_finding(finding)]
    if report.skipped:
        lines += ["", HEAD]
    for reason in not_looked(report.skipped):
        lines += _wrapped(reason, "- ")
    return "\n".join(lines)


def _finding(finding: Finding) -> Iterator[str]:
    yield from _wrapped(f"{finding.severity.upper()} {finding.rule}: {places(finding)}", "")
    yield from _wrapped(f"{finding.quantity}: measured {number(finding.measured)}, expected {expected(finding)}")
    yield from _wrapped(f"{finding.message}.")
    if told := mend(finding):
        yield from _wrapped(f"mend: {told}")
    if told := source(finding):
        yield from _wrapped(f"source: {told}")
    if where := line_of_code(finding):
        yield f"  at {_cut(where, WIDTH - 5)}"  # one word, so that it can be clicked
    for one in finding.consequences:
        yield from _wrapped(f"so {one.rule} at {places(one)}: {one.quantity} {number(one.measured)}", "  - ")


def _cut(path: str, most: int) -> str:
    """The end of a long path, which names the file."""
    return path if len(path) <= most else f"…{path[1 - most :]}"


def _wrapped(text: str, first: str = "  ") -> list[str]:
    return wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)
