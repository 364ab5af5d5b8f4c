"""Words: how all reports tell a number, a place and a verdict."""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path

from surd.audit.finding import Finding, Severity, Skipped, Value
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
    if not report.looked:
        return f"{report.subject}: nothing was looked at"
    dark = report.trace is not None and not report.trace.attention
    told = counts(one.severity for one in report.findings)
    return f"{report.subject}: {told}{', attention not seen' if dark else ''}"


def counts(found: Iterable[Severity]) -> str:
    """How many findings there are of each severity; none is told of the first two alone."""
    number = Counter(found)
    told = [counted(number[kind], kind) for kind in (Severity.FAULT, Severity.WARNING)]
    told += [f"{number[Severity.DECLARED]} declared"] if number[Severity.DECLARED] else []
    told += [counted(number[Severity.NOTE], "note")] if number[Severity.NOTE] else []
    return ", ".join(told)


def looked(report: Report) -> str:
    """One line: how much was looked at."""
    dark = {one.rule for one in report.skipped if not one.site}
    return f"{'trained' if report.trained else 'untrained'}; {reach(len(report.passed), len(dark))}"


def reach(passed: int, dark: int) -> str:
    """How many rules found nothing, and how many could not look."""
    told = f"{counted(passed, 'rule')} passed"
    return f"{told}, {counted(dark, 'rule')} could not look" if dark else told


def not_looked(skipped: Iterable[Skipped]) -> Iterator[str]:
    """Each reason in a line, with the rules that it kept from looking, or with the places of one rule."""
    rules: dict[str, list[str]] = {}
    sites: dict[tuple[str, str], list[str]] = {}
    for one in skipped:
        if one.site:
            sites.setdefault((one.rule, one.reason), []).append(one.site)
        else:
            rules.setdefault(one.reason, []).append(one.rule)
    for reason, names in rules.items():
        yield f"{', '.join(names)}: {reason}"
    for (rule, reason), found in sites.items():
        yield f"{rule} at {found[0]} ({counted(len(found), 'place')}): {reason}"


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
