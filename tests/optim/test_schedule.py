"""Schedules: peak, shape and the paper's printed formula."""

import itertools
import math

import pytest

from surd.optim.schedule import Cosine, InverseRootDecay, Paper, Schedule
from surd.part import structure, unstructure

WARMUP, STEPS, WIDTH = 40, 400, 512
MEMBERS = [
    InverseRootDecay(rate=1e-3, warmup=WARMUP),
    Paper(factor=1.0, warmup=WARMUP),
    Cosine(rate=1e-3, warmup=WARMUP, floor=0.1),
]


@pytest.mark.parametrize("schedule", MEMBERS, ids=lambda part: part.kind)
def test_rises_to_its_peak_at_the_end_of_the_warmup_and_falls_afterwards(schedule: Schedule) -> None:
    rates = [schedule(step, STEPS, WIDTH) for step in range(1, STEPS + 1)]
    assert max(range(STEPS), key=rates.__getitem__) + 1 == WARMUP
    assert all(low < high for low, high in itertools.pairwise(rates[:WARMUP]))
    assert all(high > low for high, low in itertools.pairwise(rates[WARMUP - 1 :]))
    assert rates[0] > 0


@pytest.mark.parametrize("schedule", MEMBERS, ids=lambda part: part.kind)
def test_survives_a_recipe(schedule: Schedule) -> None:
    assert structure(type(schedule), unstructure(schedule)) == schedule


@pytest.mark.parametrize("step", [1, 39, 40, 41, 100_000])
def test_paper_is_equation_3(step: int) -> None:
    printed = WIDTH**-0.5 * min(step**-0.5, step * WARMUP**-1.5)
    assert math.isclose(Paper(warmup=WARMUP)(step, STEPS, WIDTH), printed, rel_tol=1e-12)


def test_inverse_root_names_its_peak() -> None:
    schedule = InverseRootDecay(rate=5e-3, warmup=2000)
    assert schedule(2000, 8000, 128) == 5e-3
    assert math.isclose(schedule(8000, 8000, 128), 2.5e-3)


def test_cosine_ends_on_its_floor_and_stays_there() -> None:
    schedule = Cosine(rate=1.0, warmup=10, floor=0.25)
    assert math.isclose(schedule(100, 100, 8), 0.25)
    assert math.isclose(schedule(55, 100, 8), 0.625)
    shorter = Cosine(rate=1.0, warmup=10, steps=50, floor=0.25)
    assert math.isclose(shorter(50, 100, 8), 0.25)
    assert math.isclose(shorter(90, 100, 8), 0.25)


@pytest.mark.parametrize(
    "schedule", [InverseRootDecay(rate=1.0, warmup=0), Paper(warmup=0), Cosine(rate=1.0, warmup=0)]
)
def test_no_warmup_starts_at_the_peak(schedule: Schedule) -> None:
    rates = [schedule(step, 50, WIDTH) for step in range(1, 51)]
    assert all(math.isfinite(rate) for rate in rates)
    assert rates[0] == max(rates)
