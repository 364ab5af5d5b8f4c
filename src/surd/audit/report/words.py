"""Words: how all reports tell a number, a place and a verdict."""

from math import isfinite
from pathlib import Path

from surd.audit.finding import Finding, Severity, Value
from surd.audit.judge import Report


def number(value: Value | None) -> str:
    """Four digits; whole numbers whole."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def counted(count: int, word: str) -> str:
    """In words: "1 fault", "2 faults", "no faults"."""
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def verdict(report: Report) -> str:
    """One line: what counts against the model, and what else was said."""
    counts = {kind: sum(one.severity is kind for one in report.findings) for kind in Severity}
    told = [counted(counts[kind], kind) for kind in (Severity.FAULT, Severity.WARNING)]
    told += [f"{counts[Severity.DECLARED]} declared"] if counts[Severity.DECLARED] else []
    told += [counted(counts[Severity.NOTE], "note")] if counts[Severity.NOTE] else []
    told += ["attention not seen"] if report.trace is not None and not report.trace.attention else []
    return f"{report.subject}: {', '.join(told)}"


def looked(report: Report) -> str:
    """One line: how much was looked at."""
    dark = {one.rule for one in report.skipped if not one.site}
    state = "trained" if report.trained else "untrained"
    told = f"{state}; {counted(len(report.passed), 'rule')} passed"
    return f"{told}, {counted(len(dark), 'rule')} could not look" if dark else told


def expected(finding: Finding) -> str:
    """The expected value, with its range where it is one."""
    low, high = finding.low, finding.high
    bounded = [bound is not None and isfinite(bound) for bound in (low, high)]
    if not any(bounded):
        return number(finding.expected)
    words = f"{number(low)} to {number(high)}" if all(bounded) else ""
    words = words or (f"at least {number(low)}" if bounded[0] else f"at most {number(high)}")
    return f"{number(finding.expected)} ({words})"


def source(finding: Finding) -> str:
    """Where the expectation comes from, unless the message says so."""
    return "" if finding.source in finding.message else finding.source


def mend(finding: Finding) -> str:
    """What to change; what is declared is meant to be so."""
    return "" if finding.severity is Severity.DECLARED else finding.mend


def places(finding: Finding) -> str:
    """The first place, and how many more."""
    more = len(finding.sites) - 1
    return f"{finding.site or 'the model'}" + (f" and {more} more" if more > 0 else "")


def line_of_code(finding: Finding) -> str:
    """`file:line`, where it is known."""
    return f"{beneath(finding.file)}:{finding.line}" if finding.file else ""


def beneath(file: str) -> str:
    """Relative to the folder at work, where it lies beneath it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
