"""Figures: what is drawn, as plain numbers that stand in the record; `chart` draws them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from surd.part import Part


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One direction of a figure."""

    label: str
    """What the numbers are."""
    log: bool = False
    """Whether equal steps are equal factors."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points that belong together."""

    name: str
    """What they are, as the legend tells it."""
    x: tuple[float, ...]
    """Across; in a figure with rows, the number of the row."""
    y: tuple[float, ...]
    """Upwards; in a figure with rows, the value."""
    expected: bool = False
    """Whether it is an expectation, drawn as a dashed line, or a measurement, drawn as points."""
    color: int = 0
    """The number of its colour; a measurement and its expectation share one."""


def beside(
    name: str, x: Sequence[float], measured: Iterable[float], expected: Iterable[float], color: int
) -> tuple[Series, Series]:
    """A measurement and its expectation at the same places."""
    x = tuple(map(float, x))
    return (
        Series(name=name, x=x, y=tuple(measured), color=color),
        Series(name=f"{name}, predicted", x=x, y=tuple(expected), expected=True, color=color),
    )


@dataclass(frozen=True, kw_only=True)
class Lines(Part, kind="lines"):
    """A figure with numbers on both axes."""

    title: str
    """What it shows."""
    x: Axis
    """Across."""
    y: Axis
    """Upwards."""
    series: tuple[Series, ...]
    """What is drawn."""


@dataclass(frozen=True, kw_only=True)
class Rows(Part, kind="rows"):
    """A figure with one row for each named thing and its values along it."""

    title: str
    """What it shows."""
    names: tuple[str, ...]
    """The names of the rows, from the top."""
    x: Axis
    """Along the rows."""
    series: tuple[Series, ...]
    """What is drawn."""


Figure = Lines | Rows
