"""Arms of a timing taken in turn, A B C, A B C, …, and compared within each round, since a machine drifts."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    """Something that is timed."""

    name: str


Arm = TypeVar("Arm", bound=Named)


def alternate(arms: Sequence[Arm], measure: Callable[[Arm], float], rounds: int) -> dict[str, list[float]]:
    """Seconds of every arm in every round, after one pass of each that meets all shapes for the first time."""
    for arm in arms:
        measure(arm)
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for number in range(rounds):
        for arm in arms:
            seconds[arm.name].append(measure(arm))
        told = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items())
        print(f"round {number + 1} of {rounds}: {told}", flush=True)
    return seconds


def faster(seconds: Mapping[str, list[float]], names: Sequence[str]) -> str:
    """The arm with the smaller median."""
    return min(names, key=lambda name: statistics.median(seconds[name]))


def ratios(seconds: Mapping[str, list[float]], base: str, work: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Each arm's speed over that of `base` within each round: median, smallest and largest.

    `work` is what each arm did in a round as a multiple of what `base` did, where that is not the same.
    """
    told: dict[str, Any] = {}
    for name, times in seconds.items():
        share = work[name] if work else 1.0
        within = [share * other / own for other, own in zip(seconds[base], times, strict=True)]
        told[name] = {"median": statistics.median(within), "min": min(within), "max": max(within)}
    return told


def spelled(ratio: Mapping[str, float]) -> str:
    """A ratio as tables show it."""
    return f"{ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f})"
