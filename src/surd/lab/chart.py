"""Charts: figures as SVG that stands inside a page; colours come from the page, so one drawing suits light and dark."""

from collections.abc import Iterator, Sequence
from html import escape

from surd.lab.figure import Figure, Lines, Rows, Series
from surd.lab.finding import number
from surd.lab.ruler import Ruler, ruler, short

WIDTH = 480
"""Units across; small, so that text keeps a readable size on a telephone."""
HEIGHT = 330
"""Units down, of a figure with two axes."""
ROW = 24
"""Units down for each row of a figure with rows."""
COLORS = 6
"""Colours that the page defines; further series begin again."""
LETTER = 7.4
"""About the width of a letter."""


def svg(figure: Figure) -> str:
    """The drawing of a figure."""
    return _lines(figure) if isinstance(figure, Lines) else _rows(figure)


def legend(figure: Figure) -> str:
    """The names of the series with their colours, as a list that wraps on narrow screens.

    An expectation that has its measurement's colour is not named again: one entry tells what a dashed line is.
    """
    measured = {series.color for series in figure.series if not series.expected}
    items = [
        _entry(series.color, "dashed" if series.expected else "dot", series.name)
        for series in figure.series
        if not (series.expected and series.color in measured)
    ]
    if len(items) < len(figure.series):
        mark = "dashed line" if isinstance(figure, Lines) else "stroke"
        items.append(f"<li>{mark}: predicted</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _entry(color: int, swatch: str, name: str) -> str:
    return f'<li data-color="{color}"><span class="swatch {swatch} c{color % COLORS}"></span>{escape(name)}</li>'


def _lines(figure: Lines) -> str:
    left, right, top, bottom = 62, WIDTH - 20, 12, HEIGHT - 48
    across = ruler([value for series in figure.series for value in series.x], left, right, figure.x.log)
    upwards = ruler([value for series in figure.series for value in series.y], bottom, top, figure.y.log)
    parts = [*_grid_across(across, top, bottom, figure.x.label, HEIGHT)]
    for tick in upwards.ticks():
        y = upwards.place(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    middle = (top + bottom) / 2
    parts.append(
        f'<text class="label" transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(figure.y.label)}</text>"
    )
    predicted = {series.color for series in figure.series if series.expected}
    for series in figure.series:
        points = [(across.place(x), upwards.place(y)) for x, y in zip(series.x, series.y, strict=True)]
        said = [f"{short(x)}: {number(y)}" for x, y in zip(series.x, series.y, strict=True)]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        # Points beside a prediction stand alone, so that the eye compares them with its line and not with their own.
        paths = [f'<path d="{path}"/>'] if series.expected or series.color not in predicted else []
        parts.append(_group(series, paths, points, said))
    return _frame(figure.title, HEIGHT, parts)


def _rows(figure: Rows) -> str:
    left = min(int(max(map(len, figure.names)) * LETTER) + 20, WIDTH * 11 // 20)
    right, top, height = WIDTH - 18, 10, ROW * len(figure.names) + 58
    across = ruler([value for series in figure.series for value in series.y], left, right, figure.x.log)
    parts = [*_grid_across(across, top, height - 48, figure.x.label, height)]
    for index, name in enumerate(figure.names):
        y = top + ROW * (index + 0.5)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
    for series in figure.series:
        points = [(across.place(y), top + ROW * (x + 0.5)) for x, y in zip(series.x, series.y, strict=True)]
        said = [f"{figure.names[int(x)]}: {number(y)}" for x, y in zip(series.x, series.y, strict=True)]
        bars = [f'<path d="M{x:.1f} {y - 8:.1f}V{y + 8:.1f}"/>' for x, y in points] if series.expected else []
        parts.append(_group(series, bars, points, said))
    return _frame(figure.title, height, parts)


def _grid_across(across: Ruler, top: float, bottom: float, label: str, height: int) -> Iterator[str]:
    for tick in across.ticks():
        x = across.place(tick)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{short(tick)}</text>'
    middle = (across.start + across.end) / 2
    yield f'<text class="label" x="{middle:.0f}" y="{height - 9}" text-anchor="middle">{escape(label)}</text>'


def _group(series: Series, paths: list[str], points: Sequence[tuple[float, float]], said: Sequence[str]) -> str:
    """One series: an expectation is a dashed line, a measurement has a point for each number, which tells it."""
    marks = paths
    if not series.expected:
        marks = paths + [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(f"{series.name}, {text}")}</title></circle>'
            for (x, y), text in zip(points, said, strict=True)
        ]
    kind = "expected" if series.expected else "measured"
    return f'<g class="series {kind} c{series.color % COLORS}" data-color="{series.color}">{"".join(marks)}</g>'


def _frame(title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
