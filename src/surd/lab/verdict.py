"""The verdict: what an interval says about an expectation, which can be yes, no, or that it is too small to say."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

COVERAGE = 0.95
"""How often an interval holds the mean of infinitely many seeds."""


class Verdict(StrEnum):
    """What a measurement says about an expectation."""

    CONFIRMED = "confirmed"
    """All of the interval lies within the tolerance."""
    REFUTED = "refuted"
    """All of the interval lies outside it."""
    UNDECIDED = "too small to say"
    """The interval reaches over an edge of the tolerance: a difference, if there is one, is too small to be seen."""
    UNMEASURED = "not measured"
    """There is no measurement, only an expectation."""


class Side(StrEnum):
    """Which values an expectation allows."""

    NEAR = "near"
    """Those within the tolerance on both sides."""
    AT_LEAST = "at least"
    """Those not below the expected one by more than the tolerance."""
    AT_MOST = "at most"
    """Those not above the expected one by more than the tolerance."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Where the mean over all seeds lies, judged from a few of them."""

    mean: float
    """The mean of the values."""
    low: float
    """The lower end."""
    high: float
    """The upper end."""


def interval(values: Sequence[float]) -> Interval:
    """Student's interval for the mean of one value a seed; a single value is exact and has an interval of no width."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean=mean, low=mean, high=mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student(COVERAGE, count - 1) * math.sqrt(variance / count)
    return Interval(mean=mean, low=mean - half, high=mean + half)


def judge(found: Interval | None, expected: float, tolerance: float, side: Side = Side.NEAR) -> Verdict:
    """The verdict on `expected` ± `tolerance`, which is open to one side for "at least" and "at most"."""
    if found is None:
        return Verdict.UNMEASURED
    low = -math.inf if side is Side.AT_MOST else expected - tolerance
    high = math.inf if side is Side.AT_LEAST else expected + tolerance
    if low <= found.low and found.high <= high:
        return Verdict.CONFIRMED
    if found.high < low or found.low > high:
        return Verdict.REFUTED
    return Verdict.UNDECIDED


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a claim with several consequences: one that fails refutes it, and all must hold to confirm it.

    What was not measured says nothing, unless there is nothing else.
    """
    measured = [verdict for verdict in verdicts if verdict is not Verdict.UNMEASURED]
    if not measured:
        return Verdict.UNMEASURED
    if Verdict.REFUTED in measured:
        return Verdict.REFUTED
    return Verdict.UNDECIDED if Verdict.UNDECIDED in measured else Verdict.CONFIRMED


def student(coverage: float, freedom: int) -> float:
    """The t with |T| < t in a share `coverage` of all cases, T being Student's with `freedom` degrees of freedom.

    Source: the cumulative distribution in closed form, Abramowitz & Stegun 1964, 26.7.3 and 26.7.4, solved by halving.
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < coverage:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < coverage else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability of |T| < t: a finite sum over powers of cos θ with θ = arctan(t / √freedom)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
