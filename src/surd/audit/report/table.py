"""A report as text of at most 80 columns, the verdict first."""

from textwrap import fill

from surd.audit.finding import Finding
from surd.audit.judge import Report

WIDTH = 80


def table(report: Report) -> str:
    """All of it."""
    lines = [verdict(report), ""]
    for finding in report.findings:
        lines += _lines(finding)
    return "\n".join(lines)


def verdict(report: Report) -> str:
    """One line."""
    counts = [sum(one.severity == kind for one in report.findings) for kind in ("fault", "warning", "declared", "note")]
    return f"{report.subject}: {counts[0]} faults, {counts[1]} warnings, {counts[2]} declared, {counts[3]} notes"


def _lines(finding: Finding) -> list[str]:
    places = f"{finding.site}" + (f" and {len(finding.sites) - 1} more" if len(finding.sites) > 1 else "")
    lines = [f"{finding.severity} {finding.rule} at {places}", fill(finding.message, WIDTH)]
    return [*lines, fill(f"mend: {finding.mend}", WIDTH), *(f"  so {x.rule}: {x.message}" for x in finding.consequences), ""]
