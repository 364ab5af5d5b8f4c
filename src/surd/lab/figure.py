"""Figures: what is drawn, as plain numbers that stand in the record; `chart` draws them, and each has a table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from surd.lab.finding import Table, number, plain
from surd.lab.samples import Sizes, mean
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
Law = Callable[[float], float]


def curves(found: Mapping[str, Sizes], laws: Mapping[str, Law]) -> tuple[Series, ...]:
    """For each name, the mean over seeds at each size, and the law at the same sizes where there is one."""
    return tuple(series for color, name in enumerate(found) for series in _curve(name, found[name], laws, color))


def _curve(name: str, found: Sizes, laws: Mapping[str, Law], color: int) -> Iterator[Series]:
    x = tuple(map(float, found))
    yield Series(name=name, x=x, y=tuple(map(mean, found.values())), color=color)
    if name in laws:
        yield Series(name=name, x=x, y=tuple(laws[name](size) for size in found), expected=True, color=color)


def marks(
    name: str, names: Sequence[str], found: Mapping[str, Sequence[float]], expected: Mapping[str, float], color: int = 0
) -> tuple[Series, ...]:
    """In a figure with rows: the mean over seeds on each row that was measured, and what is expected there."""
    measured = [(float(place), mean(found[row])) for place, row in enumerate(names) if row in found]
    predicted = [(float(place), expected[row]) for place, row in enumerate(names) if row in expected]
    return tuple(
        Series(name=name, x=tuple(x for x, _ in points), y=tuple(y for _, y in points), expected=law, color=color)
        for law, points in ((False, measured), (True, predicted))
        if points
    )


def numbers(figure: Figure) -> Table:
    """The table of a figure: a row for each place across, a column for each colour, "measured (predicted)"."""
    places = sorted({x for series in figure.series for x in series.x})
    names = {series.color: series.name for series in reversed(figure.series)}  # the first of a colour names it
    cells: dict[tuple[float, int], str] = {}
    for series in sorted(figure.series, key=lambda series: series.expected):
        for x, y in zip(series.x, series.y, strict=True):
            cells.setdefault((x, series.color), "")
            cells[x, series.color] += f" ({plain(y)})" if series.expected else number(y)
    heads = [figure.names[int(x)] if isinstance(figure, Rows) else plain(x) for x in places]
    return Table(
        caption=f"{figure.title}: measured (predicted)" if any(s.expected for s in figure.series) else figure.title,
        columns=("" if isinstance(figure, Rows) else figure.x.label, *(names[color] for color in sorted(names))),
        rows=tuple(
            (head, *(cells.get((x, color), "").strip() for color in sorted(names)))
            for head, x in zip(heads, places, strict=True)
        ),
    )
