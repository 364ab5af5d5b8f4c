"""The verdict: what an interval says, over all its outcomes, and Student's interval against published values."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surd.errors import SurdError
from surd.lab.finding import Claim, Comparison, at_least, at_most, near, not_measured
from surd.lab.verdict import COVERAGE, Interval, Side, Verdict, interval, judge, student, together

YES, NO, OPEN, NONE = Verdict.CONFIRMED, Verdict.REFUTED, Verdict.UNDECIDED, Verdict.UNMEASURED
numbers = st.floats(-1e3, 1e3, allow_nan=False)


def between(low: float, high: float) -> Interval:
    return Interval(mean=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "side", "verdict"),
    [
        (0.95, 1.05, Side.NEAR, YES),
        (0.9, 1.1, Side.NEAR, YES),  # the edges belong to it
        (1.05, 1.15, Side.NEAR, OPEN),
        (0.85, 0.95, Side.NEAR, OPEN),
        (0.0, 2.0, Side.NEAR, OPEN),
        (1.2, 1.3, Side.NEAR, NO),
        (0.7, 0.8, Side.NEAR, NO),
        (0.95, 9.0, Side.AT_LEAST, YES),
        (0.5, 9.0, Side.AT_LEAST, OPEN),
        (0.5, 0.8, Side.AT_LEAST, NO),
        (-9.0, 1.05, Side.AT_MOST, YES),
        (-9.0, 1.5, Side.AT_MOST, OPEN),
        (1.2, 1.5, Side.AT_MOST, NO),
    ],
)
def test_every_outcome(low: float, high: float, side: Side, verdict: Verdict) -> None:
    assert judge(between(low, high), 1.0, 0.1, side) is verdict


def test_what_was_not_measured_is_not_judged() -> None:
    assert judge(None, 1.0, 0.1) is NONE


@given(numbers, st.floats(0, 10), numbers, st.floats(0, 10), st.floats(0, 10))
def test_a_wider_tolerance_never_turns_yes_into_no(
    middle: float, half: float, expected: float, tolerance: float, more: float
) -> None:
    order = [NO, OPEN, YES]
    found = between(middle - half, middle + half)
    narrow, wide = judge(found, expected, tolerance), judge(found, expected, tolerance + more)
    assert order.index(narrow) <= order.index(wide)


@given(numbers, st.floats(0, 10), numbers, st.floats(0, 10), st.floats(0, 10))
def test_fewer_seeds_can_hide_a_difference_but_not_reverse_it(
    middle: float, half: float, expected: float, tolerance: float, more: float
) -> None:
    sharp = judge(between(middle - half, middle + half), expected, tolerance)
    blurred = judge(between(middle - half - more, middle + half + more), expected, tolerance)
    assert blurred in (sharp, OPEN)


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([YES, YES], YES),
        ([YES, OPEN], OPEN),
        ([YES, OPEN, NO], NO),
        ([YES, NONE], YES),
        ([OPEN, NONE], OPEN),
        ([NONE, NONE], NONE),
        ([], NONE),
    ],
)
def test_one_failure_refutes_and_all_must_hold(verdicts: list[Verdict], whole: Verdict) -> None:
    assert together(verdicts) is whole


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)]
)
def test_student_s_t_is_that_of_the_printed_tables(freedom: int, t: float) -> None:
    assert student(COVERAGE, freedom) == pytest.approx(t, abs=6e-4)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    draws = torch.randn(4000, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    held = statistics.fmean(found.low <= 0 <= found.high for found in map(interval, draws))
    assert held == pytest.approx(COVERAGE, abs=0.012)


def test_a_single_value_is_exact() -> None:
    assert interval([3.0]) == Interval(mean=3.0, low=3.0, high=3.0)


def test_a_comparison_is_judged_on_all_its_seeds() -> None:
    assert near("x", [0.99, 1.0, 1.01, 1.0, 1.0], 1.0, 0.05, "because").verdict is YES
    assert near("x", [0.5, 1.5, 1.0, 0.7, 1.3], 1.0, 0.05, "because").verdict is OPEN
    assert at_least("x", [1.0, 1.1, 1.2, 1.1, 1.0], 2.0, "because").verdict is NO
    assert at_most("x", [1.0, 1.1, 1.2, 1.1, 1.0], 2.0, "because").verdict is YES
    assert not_measured("x", 1.0, 0.1, "because", "not installed").verdict is NONE


def test_a_claim_is_refuted_by_one_of_its_consequences() -> None:
    good, bad = near("x", [1.0], 1.0, 0.1, "because"), near("y", [2.0], 1.0, 0.1, "because")
    assert Claim(text="x", heard="y", comparisons=(good, bad), answer="z").verdict is NO


@pytest.mark.parametrize(
    ("values", "unmeasured", "told"),
    [((), "", "unmeasured"), ((1.0,), "why", "unmeasured"), ((math.nan,), "", "finite"), ((math.inf,), "", "finite")],
)
def test_a_comparison_without_numbers_or_with_impossible_ones_is_refused(
    values: tuple[float, ...], unmeasured: str, told: str
) -> None:
    with pytest.raises(SurdError, match=told):
        Comparison(quantity="x", values=values, expected=1.0, tolerance=0.1, source="because", unmeasured=unmeasured)
