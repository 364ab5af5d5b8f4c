"""Findings: what a rule says of one place of a model, with the number, what was expected, its source and the mend."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters; only the first two make a check fail."""

    FAULT = "fault"
    """The model does not compute what it is meant to, or cannot learn as it should."""
    WARNING = "warning"
    """A number with a harmful effect, which some people choose knowingly."""
    DECLARED = "declared"
    """A deviation that the configuration, the class or a paper states."""
    NOTE = "note"
    """Out of the usual range, without any effect that could be measured."""

    @property
    def fails(self) -> bool:
        """Whether it counts against the model."""
        return self in (Severity.FAULT, Severity.WARNING)


Value = float | int | bool | str
"""What is measured: a number, a count, a yes or no, or a name."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cause, at one place or at several alike."""

    severity: Severity
    site: str
    """The first place: `path:role`, or the name of a weight."""
    quantity: str
    """What was measured, in a few words or a formula: `c·√d_k`."""
    measured: Value
    expected: Value
    source: str
    """Where the expectation comes from: a paper with its section, a configuration's field, or arithmetic."""
    message: str
    """One sentence: what is wrong here, with the numbers, and by how much."""
    mend: str
    """What to change, in words that fit this model."""
    low: float | None = None
    """The healthy range, where it is one."""
    high: float | None = None
    file: str = ""
    line: int = 0
    rule: str = ""
    """Filled in by the judge."""
    sites: tuple[str, ...] = ()
    """All places of the same cause, the first among them; filled in by the judge."""
    consequences: tuple["Finding", ...] = ()
    """Findings that this one explains; filled in by the judge."""

    def at(self, rule: str) -> "Finding":
        """The same, with its rule and at least one place."""
        return replace(self, rule=rule, sites=self.sites or (self.site,))


def as_one(found: Iterable[Finding], grave: Callable[[Finding], float]) -> Iterator[Finding]:
    """One finding for a cause that shows at many places in different strength: the gravest, with all the places."""
    ordered = sorted(found, key=grave, reverse=True)
    if ordered:
        yield replace(ordered[0], sites=tuple(one.site for one in ordered))


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A rule that could not look, wholly or at one place: never to be taken for a pass."""

    reason: str
    site: str = ""
    """Empty when the whole rule could not look."""
    rule: str = ""
    """Filled in by the judge."""


class Unobserved(Exception):
    """Raised by evidence that cannot be had; the rule that asked for it is then skipped, with this as the reason."""
