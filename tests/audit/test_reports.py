"""Reports: the same findings as a table, JSON, annotations, a page, and beside a baseline."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

from surd.api import check
from surd.audit.baseline import without_known, write_baseline
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.judge import Report
from surd.audit.report.github import annotations
from surd.audit.report.heat import shortened
from surd.audit.report.page import page
from surd.audit.report.record import SCHEMA, as_json
from surd.audit.report.rule_page import rule_page
from surd.audit.report.table import table
from surd.audit.rule import named, names
from surd.audit.specimen import Attention, language_model
from surd.errors import SurdError


class Unscaled(Attention):
    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query @ key.transpose(-2, -1)


def broken() -> nn.Module:
    model = language_model()
    for block in model.blocks:
        block.attention = Unscaled(block.attention.width, block.attention.heads)
    return model


@pytest.fixture(scope="module")
def report() -> Report:
    return check(broken())


@pytest.fixture(scope="module")
def healthy() -> Report:
    return check(language_model())


def strange(**changes: object) -> Report:
    """A report of one finding with everything in it that a format could stumble over."""
    told = Finding(
        severity=Severity.FAULT,
        rule="attention-scale",
        site="layers.0.<b>:score,1",
        sites=("layers.0.<b>:score,1", "layers.1:score"),
        quantity='c of "softmax"',
        measured=float("inf"),
        expected=0.125,
        low=float("-inf"),
        source="100 % arithmetic",
        message="one line\nand <script>alert(1)</script> another, of 50 %",
        mend="a: b, c",
        file="/somewhere/else.py",
        line=7,
    )
    empty = Report(
        subject="a <model>",
        findings=(replace(told, **changes),),
        skipped=(Skipped(rule="soft-cap", reason="none & nothing", site=""),),
        passed=("head-bias",),
        trained=False,
        trace=None,
        ledger=(),
        heads=(),
        structure="0",
        notes=("told <b>",),
    )
    return empty


def test_the_table_leads_with_the_verdict_and_fits_eighty_columns(report: Report, healthy: Report) -> None:
    for found in (report, healthy, strange(site="a" * 200)):
        lines = table(found).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith(found.subject) and "fault" in lines[0]
    assert table(report).splitlines()[0] == "LanguageModel: 1 fault, no warnings"
    assert table(healthy).splitlines()[0] == "LanguageModel: no faults, no warnings"


def test_the_table_tells_number_expectation_source_and_mend(report: Report) -> None:
    text = " ".join(table(report).split())
    (found,) = report.failing
    for part in (found.rule, found.site, "measured 1", "expected 0.25", found.source, found.mend, "1 more"):
        assert part in text, part


def test_what_could_not_be_looked_at_is_in_every_format(report: Report) -> None:
    reason = next(one.reason for one in report.skipped)
    assert reason in " ".join(table(report).split())
    assert reason in as_json(report)
    assert reason.replace("'", "&#x27;") in page(report)


def test_json_has_the_published_form(report: Report, healthy: Report) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for found in (report, healthy, strange(), check(language_model(), static=True)):
        jsonschema.validate(json.loads(as_json(found)), schema)
    said = json.loads(as_json(report))
    (finding,) = [one for one in said["findings"] if one["severity"] == "fault"]
    assert (finding["rule"], said["clean"]) == ("attention-scale", False)
    assert finding["measured"] == pytest.approx(1.0) and finding["expected"] == pytest.approx(0.25)
    assert len(finding["sites"]) == 2 and said["ledger"] and said["sizes"]


def test_a_comparison_has_the_same_form() -> None:
    found = check(broken(), against=language_model())
    jsonschema.validate(json.loads(as_json(found)), json.loads(SCHEMA.read_text()))
    assert max(map(len, table(found).splitlines())) <= 80


def test_a_form_that_lacks_something_is_refused(healthy: Report) -> None:
    said = json.loads(as_json(healthy))
    del said["passed"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(said, json.loads(SCHEMA.read_text()))


def test_annotations_are_one_line_each_and_escaped() -> None:
    first, verdict, *_, last = annotations(strange()).splitlines()
    head, text = re.fullmatch(r"::error (.*?)::(.*)", first).groups()
    assert head.startswith("file=/somewhere/else.py,line=7,title=attention-scale%3A ")
    assert "%2C" in head and "\n" not in head
    assert "50 %25" in text and "one line%0Aand" in text
    assert verdict == "a <model>: 1 fault, no warnings"
    assert last == "- soft-cap: none & nothing"


@pytest.mark.parametrize(
    ("severity", "command"), [("fault", "error"), ("warning", "warning"), ("declared", "notice"), ("note", "notice")]
)
def test_each_severity_has_its_annotation(severity: str, command: str) -> None:
    assert annotations(strange(severity=Severity(severity))).startswith(f"::{command} ")


def test_an_annotation_names_the_file_beneath_the_folder_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "file=net/model.py," in annotations(strange(file=str(tmp_path / "net" / "model.py")))


class Outline(HTMLParser):
    """Which elements a page has, and what they refer to."""

    VOID = ("meta", "br", "link", "img", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    assert found.open == []
    return found


def test_a_page_is_whole_and_asks_nothing_of_a_network(report: Report, healthy: Report) -> None:
    for found in (report, healthy, strange()):
        text = page(found)
        seen = outline(text).seen
        assert not [name for name, told in seen if {"src", "href"} & told.keys()]
        assert "http://" not in text and "url(" not in text and "@import" not in text
    bars = [
        told
        for name, told in outline(page(report)).seen
        if name == "div" and "bar" in (told.get("class") or "").split()
    ]
    assert len(bars) == len(report.ledger) > 0
    assert all("tabindex" in bar and "expected" in (bar["title"] or "") for bar in bars)
    cells = [
        told for name, told in outline(page(report)).seen if name == "td" and "--heat" in (told.get("style") or "")
    ]
    assert cells and all("head" in (cell["title"] or "") and "tabindex" in cell for cell in cells)
    assert page(report).count('<th scope="col">place</th>') == page(report).count("<figure>") > 0
    assert 'class="axis"' in page(report)


def test_a_page_escapes_what_a_model_is_called() -> None:
    text = page(strange())
    assert "<script>alert" not in text and "a &lt;model&gt;" in text and "none &amp; nothing" in text


def test_what_is_declared_needs_no_mend() -> None:
    for told in (table, page, annotations):
        assert "a: b, c" in told(strange()) and "a: b, c" not in told(strange(severity=Severity.DECLARED))


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (None, None, "expected 2"),
        (1.0, 3.0, "expected 2 (1 to 3)"),
        (float("-inf"), 3.0, "expected 2 (at most 3)"),
        (1.0, float("inf"), "expected 2 (at least 1)"),
        (None, float("inf"), "expected 2"),
    ],
)
def test_a_range_without_an_end_is_told_in_words(low: float | None, high: float | None, words: str) -> None:
    text = table(strange(expected=2.0, low=low, high=high))
    assert f"{words}\n" in text


def test_rows_of_a_heat_map_are_called_by_what_tells_them_apart() -> None:
    assert shortened(["model.h.0.attn:score", "model.h.1.attn:score"]) == ["0", "1"]
    both = ["encoder.block.0.attn:score", "decoder.block.0.attn:score", "decoder.block.0.cross:cross score"]
    assert shortened(both) == ["encoder", "decoder.attn", "decoder.cross"]
    assert shortened(["a:score", "a:cross score"]) == ["a:score", "a:cross score"]
    assert shortened(["layer.attn:score"]) == ["layer"]


# Baselines.


def test_what_is_known_is_not_told_again(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    write_baseline(report, path)
    left = without_known(report, path)
    assert left.clean and any("1 known finding" in note for note in left.notes)


def worse(report: Report, **changes: object) -> Report:
    found = tuple(replace(one, **changes) if one.severity.fails else one for one in report.findings)
    return replace(report, findings=found)


def test_what_is_new_is_told(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    write_baseline(report, path)
    for changes in ({"measured": 2.0}, {"rule": "soft-cap"}, {"sites": (*report.failing[0].sites, "one.more:score")}):
        assert not without_known(worse(report, **changes), path).clean, changes
    assert without_known(worse(report, measured=1.01), path).clean
    assert without_known(worse(report, sites=report.failing[0].sites[:1]), path).clean


def test_a_baseline_of_another_model_is_refused(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    write_baseline(report, path)
    with pytest.raises(SurdError, match="another model"):
        without_known(replace(report, structure="else"), path)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"known": 3}', '{"known": [1]}', "not json", '{"known": [], "version": 9}']
)
def test_what_is_no_baseline_is_refused(text: str, report: Report, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(SurdError, match=re.escape(str(path))):
        without_known(report, path)


# Pages of rules.


@pytest.mark.parametrize("name", names())
def test_the_page_of_a_rule_has_all_its_parts(name: str) -> None:
    text = rule_page(named(name))
    heads = re.findall(r"^(#.*|\*\*Why\.\*\*|\*\*When it matters\.\*\*)", text, flags=re.MULTILINE)
    assert heads[:3] == [f"# {name}", "**Why.**", "**When it matters.**"]
    assert [head for head in heads if head.startswith("## ")] == ["## Example", "## Cure", "## Sources"]
    assert len(re.findall("```python", text)) == 2
