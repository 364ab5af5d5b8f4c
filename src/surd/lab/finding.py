"""What an experiment finds: comparisons with what was expected, claims that they test, and tables."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from surd.errors import SurdError
from surd.lab.verdict import Interval, Side, Verdict, interval, judge, together


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One quantity: what was measured beside what was expected, and why that was expected."""

    quantity: str
    """What is measured, in words."""
    values: tuple[float, ...]
    """One value a seed; a single one where nothing is random; none where nothing could be measured."""
    expected: float
    """The value that is expected."""
    tolerance: float
    """How far from it is still as expected."""
    side: Side = Side.NEAR
    """Whether the expectation is a value or a bound."""
    source: str
    """The formula, integral or paper that the expectation comes from."""
    unmeasured: str = ""
    """Why there are no values."""

    def __post_init__(self):
        if bool(self.values) == bool(self.unmeasured):
            raise SurdError("unmeasured: expected a reason where there are no values, and only there")
        if not all(map(math.isfinite, (*self.values, self.expected, self.tolerance))) or self.tolerance < 0:
            raise SurdError(f"values: expected finite numbers, found {[*self.values, self.expected, self.tolerance]}")

    @property
    def interval(self) -> Interval | None:
        """Where the mean over all seeds lies; None where nothing was measured."""
        return interval(self.values) if self.values else None

    @property
    def verdict(self) -> Verdict:
        """What the interval says about the expectation."""
        return judge(self.interval, self.expected, self.tolerance, self.side)


def near(quantity: str, values: Iterable[float], expected: float, tolerance: float, source: str) -> Comparison:
    """A value that is expected within a tolerance."""
    return Comparison(quantity=quantity, values=tuple(values), expected=expected, tolerance=tolerance, source=source)


def at_least(quantity: str, values: Iterable[float], bound: float, source: str) -> Comparison:
    """A value that is expected to reach a bound."""
    return Comparison(
        quantity=quantity, values=tuple(values), expected=bound, tolerance=0.0, side=Side.AT_LEAST, source=source
    )


def at_most(quantity: str, values: Iterable[float], bound: float, source: str) -> Comparison:
    """A value that is expected not to go beyond a bound."""
    return Comparison(
        quantity=quantity, values=tuple(values), expected=bound, tolerance=0.0, side=Side.AT_MOST, source=source
    )


def not_measured(quantity: str, expected: float, tolerance: float, source: str, reason: str) -> Comparison:
    """An expectation alone, because what would be measured is not here."""
    return Comparison(
        quantity=quantity, values=(), expected=expected, tolerance=tolerance, source=source, unmeasured=reason
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that is often said, and the comparisons that would hold if it were so."""

    text: str
    """The claim, in our own words."""
    heard: str
    """Where it comes from: a paper, or "a common explanation"."""
    comparisons: tuple[Comparison, ...]
    """What the claim, taken at its word, lets one expect; not what we expect."""
    answer: str
    """What was found instead, or beside it, with the numbers."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on all that follows from the claim."""
        return together(comparison.verdict for comparison in self.comparisons)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers to read, set beneath the figures."""

    caption: str
    """What the table shows."""
    columns: tuple[str, ...]
    """The heads; the first column names the rows."""
    rows: tuple[tuple[str, ...], ...]
    """The cells, each as it is shown."""


def number(value: float) -> str:
    """A number to three significant digits, as a person would write it."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e5:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def plain(value: float) -> str:
    """A number that was chosen or derived, without the zeros that a measured one keeps."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
