"""Pages: complete without a network, with a table for each picture, and drawings that stay on their paper."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from lab.fast import record

from surd.lab.chart import svg
from surd.lab.experiment import names
from surd.lab.figure import Axis, Lines, Rows, Series, curves, marks, numbers
from surd.lab.markdown import markdown
from surd.lab.page import SCRIPT, page, write_page
from surd.lab.ruler import even_ticks, log_ticks, ruler, short

LINES = Lines(
    title="a < b",
    x=Axis(label="x", log=True),
    y=Axis(label="y"),
    series=curves({"one": {1: [1.0, 3.0], 10: [4.0, 4.0]}, "two": {1: [0.0]}}, {"one": lambda x: 2 * x}),
)
ROWS = Rows(
    title="rows",
    names=("first", "second"),
    x=Axis(label="x"),
    series=marks("value", ("first", "second"), {"first": [1.0, 2.0]}, {"first": 1.5, "second": 2.5}),
)


@pytest.mark.parametrize("name", names())
def test_a_page_needs_no_network(name: str) -> None:
    text = page(record(name))
    assert "://" not in re.sub(r"xmlns=\"[^\"]*\"", "", text)
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == [SCRIPT, f"{name}.json"]
    assert "@import" not in text and "url(" not in text


@pytest.mark.parametrize("name", names())
def test_a_page_holds_all_that_the_record_says(name: str) -> None:
    found, text = record(name), page(record(name))
    assert text.count("<svg") == len(found.figures)
    assert text.count("<table>") == 1 + len(found.figures) + len(found.tables) + len(found.claims)
    assert text.count('class="verdict') == 1 + len(found.comparisons) + sum(
        1 + len(c.comparisons) for c in found.claims
    )
    assert found.signature in text
    assert "prefers" not in text and "light-dark(" in text


@pytest.mark.parametrize("name", names())
def test_drawings_are_whole_and_stay_on_their_paper(name: str) -> None:
    for figure in record(name).figures:
        drawing = ElementTree.fromstring(svg(figure))
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for circle in drawing.iter("circle"):
            assert 0 <= float(circle.attrib["cx"]) <= width and 0 <= float(circle.attrib["cy"]) <= height
        for text in drawing.iter("text"):
            half = len(text.text or "") * 3.7
            if text.attrib.get("text-anchor") == "end":
                assert float(text.attrib["x"]) - 2 * half >= 0, text.text
            elif "x" in text.attrib:
                assert half <= float(text.attrib["x"]) <= width - half, text.text


@pytest.mark.parametrize("name", names())
def test_ticks_do_not_overlap(name: str) -> None:
    for figure in record(name).figures:
        ticks: dict[float, list[tuple[float, int]]] = {}
        for text in ElementTree.fromstring(svg(figure)).iter("text"):
            if text.attrib.get("text-anchor") == "middle" and "x" in text.attrib:
                ticks.setdefault(float(text.attrib["y"]), []).append((float(text.attrib["x"]), len(text.text or "")))
        for line in ticks.values():
            for (left, one), (right, other) in zip(sorted(line), sorted(line)[1:], strict=False):
                assert right - left > 3.7 * (one + other), figure.title


def test_text_is_escaped() -> None:
    found = replace(record("length"), question="Is a < b & c?", figures=(LINES,))
    text = page(found)
    assert "Is a &lt; b &amp; c?" in text and "<b & c" not in text
    assert 'aria-label="a &lt; b"' in text


def test_pages_of_a_folder_share_one_script(tmp_path: Path) -> None:
    for name in ("length", "tied-head"):
        assert write_page(record(name), tmp_path) == tmp_path / f"{name}.html"
    assert {path.name for path in tmp_path.iterdir()} == {"length.html", "tied-head.html", SCRIPT}
    assert "localStorage" in (tmp_path / SCRIPT).read_text(encoding="utf-8")


def test_the_numbers_of_a_figure() -> None:
    assert numbers(LINES).columns == ("x", "one", "two")
    assert numbers(LINES).rows == (("1", "2.00 (2)", "0"), ("10", "4.00 (20)", ""))
    assert numbers(ROWS).rows == (("first", "1.50 (1.5)"), ("second", "(2.5)"))


def test_measured_points_stand_beside_their_prediction_and_say_their_number() -> None:
    drawing = svg(LINES)
    assert drawing.count("<circle") == 3
    assert drawing.count('class="series expected') == 1
    assert "<title>one, 10: 4.00</title>" in drawing
    assert '<g class="series measured c0" data-color="0"><circle' in drawing, "no line of its own beside a prediction"
    assert '<g class="series measured c1" data-color="1"><path' in drawing


def test_rulers_have_round_numbers_and_hold_every_value() -> None:
    assert even_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert log_ticks(1, 50) == [1, 2, 5, 10, 20, 50, 100, 200, 500][: len(log_ticks(1, 50))]
    assert [short(tick) for tick in (0, 0.5, -2, 1e6, 2e-5)] == ["0", "0.5", "−2", "10⁶", "2·10⁻⁵"]
    for log in (False, True):
        held = ruler([0.3, 7.0], 60, 460, log)
        assert 60 < held.place(0.3) < held.place(7.0) < 460 or held.place(0.3) == 60
    assert ruler([1.0], 0, 100, False).place(1.0) == 50
    assert ruler([5.0, 0.0], 0, 100, True).place(0.0) == 0, "what has no logarithm lies at the edge"


def test_a_series_alone_has_a_place() -> None:
    alone = Lines(title="t", x=Axis(label="x"), y=Axis(label="y"), series=(Series(name="s", x=(1.0,), y=(2.0,)),))
    assert "nan" not in svg(alone)


def test_markdown_has_every_table() -> None:
    found = record("embedding-and-position")
    text = markdown(found)
    tables = text.count("\n|---")
    assert tables == 1 + len(found.figures) + len(found.tables) + len(found.claims)
    assert text.endswith(f"`{found.signature}`\n")
