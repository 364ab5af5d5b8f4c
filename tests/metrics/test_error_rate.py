"""Error rates: the fast edit distance against its definition and jiwer, and the law of several references."""

from functools import cache

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

from surd.errors import SurdError
from surd.metrics.error_rate import (
    accuracy,
    character_error_rate,
    edit_distance,
    phone_error_rate,
    word_error_rate,
)

WORDS = draw.lists(draw.sampled_from("abc"), max_size=9)
PHONES = draw.lists(draw.sampled_from(["AH", "B", "K", "S"]), min_size=1, max_size=7).map(" ".join)


def distance_by_definition(first: str, second: str) -> int:
    @cache
    def distance(row: int, column: int) -> int:
        if not row or not column:
            return row + column
        step = distance(row - 1, column - 1) + (first[row - 1] != second[column - 1])
        return min(step, distance(row - 1, column) + 1, distance(row, column - 1) + 1)

    return distance(len(first), len(second))


@settings(max_examples=300, deadline=None)
@given(WORDS, WORDS)
def test_edit_distance_equals_its_definition(first: list[str], second: list[str]) -> None:
    assert edit_distance(first, second) == distance_by_definition("".join(first), "".join(second))


def test_edit_distance_of_sequences_longer_than_a_machine_word() -> None:
    first = "the quick brown fox jumps over the lazy dog, " * 4
    second = "a quick brown ox jumped over that lazy dog; " * 4
    assert edit_distance(first, second) == edit_distance(second, first) == distance_by_definition(first, second)
    assert edit_distance("", "abc") == edit_distance("abc", "") == 3
    assert edit_distance([], []) == 0


@settings(max_examples=100, deadline=None)
@given(draw.lists(draw.tuples(PHONES, PHONES), min_size=1, max_size=6))
def test_rates_with_one_reference_equal_jiwer(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = map(list, zip(*pairs, strict=True))
    several = [[line] for line in references]
    assert phone_error_rate(hypotheses, several).value == pytest.approx(100 * jiwer.wer(references, hypotheses))
    assert character_error_rate(hypotheses, several).value == pytest.approx(100 * jiwer.cer(references, hypotheses))


def test_the_nearest_reference_counts_and_gives_the_denominator() -> None:
    references = [["K AE T", "K AA T S"], ["D AO G"]]
    score = phone_error_rate(["K AA T", "D AO G"], references)
    # "K AA T" is one edit from both of its references: the longer one counts, four phones and three of the next line
    assert score.value == pytest.approx(100 / 7)
    assert score.signature.startswith(
        "nrefs:var|unit:phone|edits:nearest|denominator:phones of the nearest reference:7|version:surd-"
    )
    assert phone_error_rate(["K AA T", "D AO G"], [lines[::-1] for lines in references]) == score


def test_a_word_is_right_when_any_listed_pronunciation_matches() -> None:
    hypotheses = ["T AH M AA T OW", "D AO G", "K AE"]
    references = [["T AH M EY T OW", "T AH M AA T OW"], ["D  AO G "], ["K AE T"]]
    assert word_error_rate(hypotheses, references).value == pytest.approx(100 / 3)
    score = accuracy(["went", "gone"], [["went "], ["goed", "goes"]])
    assert score.value == 50 and score.higher_is_better
    assert score.signature.startswith("nrefs:var|unit:line|right:equal to any reference|denominator:lines:2|")


def test_a_rate_can_exceed_100() -> None:
    assert phone_error_rate(["A B C"], [["D"]]).value == 300


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a"], [["a"], ["b"]], "1 output lines but references for 2"),
        ([], [], "there is no line"),
        (["a", "b"], [["a"], []], "line 2 has no reference"),
        (["a"], [[""]], "every reference is empty"),
    ],
)
def test_what_cannot_be_scored_is_refused(hypotheses: list[str], references: list[list[str]], message: str) -> None:
    with pytest.raises(SurdError, match=message):
        phone_error_rate(hypotheses, references)
