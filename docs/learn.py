"""Runs the pages of docs/learn and writes what they print and draw into them: `python docs/learn.py`."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from html import escape
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from surd.lab.chart import COLORS, WIDTH, svg
from surd.lab.figure import Figure

FOLDER = Path(__file__).parent / "learn"
BLOCK = re.compile(
    r"^```python(?: (?P<needs>\w+))?\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
"""A block of Python, the package that it needs beyond surd's own, and what it prints, which stands beneath."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PICTURE = re.compile(r"\]\((\w+)\.svg\)")
"""A picture is named after the figure from which it is drawn: `growth.svg` shows the page's `growth`."""

STYLE = """
:root { color-scheme: light dark; --panel: #f5f7f9; --ink: #1b1f24; --faint: #5b6670; --line: #dfe4e8;
  --c0: #1f5fa8; --c1: #c4501b; --c2: #197a55; --c3: #8b3fa0; --c4: #8d6b00; --c5: #b02a5b; }
@media (prefers-color-scheme: dark) { :root { --panel: #1c2228; --ink: #e8ecef; --faint: #9eabb6; --line: #323a42;
  --c0: #6fb1ff; --c1: #ff9560; --c2: #5fd0a0; --c3: #d694ea; --c4: #e0c04a; --c5: #ff86b3; } }
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--faint); }
text.label { fill: var(--ink); }
.panel { fill: var(--panel); }
.grid { stroke: var(--line); }
.series path { fill: none; stroke: var(--c); stroke-width: 2; }
.series circle { fill: var(--c); stroke: var(--panel); }
.any { --c: var(--faint); }
.series.expected path { stroke-dasharray: 6 4; }
"""
STYLE += "".join(f".c{number} {{ --c: var(--c{number}); }} " for number in range(COLORS))
MARGIN, ROW, LETTER = 14, 22, 7.6


def main() -> None:
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        names: dict[str, Any] = {}
        printed = run(path, names, lambda needs: needs is None or find_spec(needs) is not None)
        path.write_text(page(text, printed), encoding="utf-8")
        for name in PICTURE.findall(text):
            file, drawn = FOLDER / f"{name}.svg", picture(names[name])
            if not (file.exists() and agrees(file.read_text(encoding="utf-8"), drawn)):
                file.write_text(drawn, encoding="utf-8")


def run(path: Path, names: dict[str, Any], chosen: Any = lambda needs: needs is None) -> dict[int, str]:
    """Executes a page's blocks in order, in `names`, and gives what each printed, by where it begins in the text.

    `chosen` tells by the package that a block needs whether it is executed. An error names the page and its line.
    """
    text, printed = path.read_text(encoding="utf-8"), {}
    for block in BLOCK.finditer(text):
        if chosen(block["needs"]):
            lines = text.count("\n", 0, block.start("code"))
            with redirect_stdout(StringIO()) as out:
                exec(compile("\n" * lines + block["code"], str(path), "exec"), names)
            printed[block.start()] = out.getvalue()
    return printed


def page(text: str, printed: dict[int, str]) -> str:
    """The page with what its blocks printed beneath each; one that was not executed keeps what stands there."""

    def renewed(block: re.Match[str]) -> str:
        kept = block["printed"] or ""
        found = printed.get(block.start(), kept)
        found = kept if agrees(kept, found) else found
        code = text[block.start() : block.end("code")] + "```\n"
        return code + (f"\n```text\n{found}```\n" if found else "")

    return BLOCK.sub(renewed, text)


def agrees(kept: str, found: str) -> bool:
    """Whether two texts differ at most by one in the last digit of a number: another machine may round differently."""
    if NUMBER.sub("#", kept) != NUMBER.sub("#", found):
        return False
    return all(_near(one, other) for one, other in zip(NUMBER.findall(kept), NUMBER.findall(found), strict=True))


def _near(one: str, other: str) -> bool:
    unit = 10.0 ** -max(len(number.partition(".")[2]) for number in (one, other))
    return abs(float(one) - float(other)) <= 1.01 * unit * ("." in one or "." in other)


def picture(figure: Figure) -> str:
    """A figure as a file of its own: the lab's drawing, its legend above, colours for light and dark."""
    drawn = re.fullmatch(r'<svg viewBox="0 0 \d+ (\d+)"[^>]*>(.*)</svg>', svg(figure), re.DOTALL)
    assert drawn, "the lab's chart is one svg element"
    names = list(legend(figure))
    top = MARGIN + ROW * (1 + max(row for row, *_ in names))
    height = top + int(drawn[1])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f'<style>{STYLE}</style>\n<rect class="panel" width="{WIDTH}" height="{height}" rx="10"/>',
        *(_entry(MARGIN + x, MARGIN + 6 + ROW * row, color, expected, name) for row, x, color, expected, name in names),
        f'<g transform="translate(0 {top})">{drawn[2]}</g>',
        "</svg>",
    ]
    # One element a line, so that a change of one number is a change of one line.
    return re.sub(r"(?<=>)(?=<(?:g|line|text|path|circle)\b)", "\n", "\n".join(parts)) + "\n"


def legend(figure: Figure) -> Iterator[tuple[int, float, int, bool, str]]:
    """Row, place, colour, whether dashed, and name of each entry; a prediction beside its measurement needs none."""
    measured = {series.color for series in figure.series if not series.expected}
    row, x = 0, 0.0
    entries = [series for series in figure.series if not (series.expected and series.color in measured)]
    named = [(series.color, series.expected, series.name) for series in entries]
    if len(entries) < len(figure.series):
        named.append((-1, True, "predicted"))
    for color, expected, name in named:
        wide = 30 + LETTER * len(name) + 10
        if x and x + wide > WIDTH - 2 * MARGIN:
            row, x = row + 1, 0.0
        yield row, x, color, expected, name
        x += wide


def _entry(x: float, y: float, color: int, expected: bool, name: str) -> str:
    kind = f"c{color % COLORS}" if color >= 0 else "any"
    mark = f'<path d="M{x:.0f} {y:.0f}h22"/>' if expected else f'<circle cx="{x + 14:.0f}" cy="{y:.0f}" r="5"/>'
    group = f'<g class="series {kind}{" expected" if expected else ""}">{mark}</g>'
    return f'{group}<text class="label" x="{x + 27:.0f}" y="{y + 4:.0f}">{escape(name)}</text>'


if __name__ == "__main__":
    main()
