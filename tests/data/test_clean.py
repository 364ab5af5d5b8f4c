"""Cleaning: what is changed in a text, what is said against a pair, and how the report tells it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surd.data.clean import Dropped, Example, Fate, Report, has_control, judge, tidy
from surd.part import structure, unstructure


@given(st.text())
def test_tidy_is_canonical_composition_without_outer_space(text: str) -> None:
    assert tidy(text) == unicodedata.normalize("NFC", text.strip())
    assert tidy(tidy(text)) == tidy(text) or tidy(text) != tidy(text).strip()


@given(st.text())
def test_control_characters_are_those_of_unicode_but_for_the_tab(text: str) -> None:
    assert has_control(text) == any(unicodedata.category(letter) == "Cc" and letter != "\t" for letter in text)


@pytest.mark.parametrize(
    ("source", "target", "fate"),
    [
        ("a", "b", Fate.TRAIN),
        ("a\tb", "c\u2028d", Fate.TRAIN),
        ("a", "", Fate.EMPTY),
        ("", "b", Fate.EMPTY),
        ("a\x85", "b", Fate.CONTROL),
        ("a", "b\x00", Fate.CONTROL),
        ("a b c", "d", Fate.TRAIN),
        ("a  b  c", "d", Fate.TRAIN),
        ("a b c d", "e", Fate.LONG),
        ("e", "a b c d", Fate.LONG),
    ],
)
def test_what_is_said_against_a_pair(source: str, target: str, fate: Fate) -> None:
    assert judge(source, target, max_length=3) is fate


def test_a_report_in_words() -> None:
    example = Example(line=1234, source="a\x00", target="b" * 70)
    report = Report(
        name="x.tsv",
        pairs=2000,
        train=1800,
        held_out=120,
        held_out_sources=100,
        dropped=(Dropped(cause="control characters", count=80, examples=(example,)),),
        warnings=("few",),
    )
    assert report.usable == 1920
    assert report.lines() == [
        "2,000 pairs read from x.tsv",
        "1,800 to train on, 120 held out of 100 sources",
        "80 left out: control characters",
        '    line 1,234: "a�" → "' + "b" * 59 + '…"',
        "warning: few",
    ]
    assert structure(Report, unstructure(report)) == report
