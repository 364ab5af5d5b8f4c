"""The early sentence: right in each of the situations it tells apart."""

import math

import pytest
import torch

from surd.training.verdict import Yardsticks, beats_frequencies, judge, unigram_entropy

YARDSTICKS = Yardsticks(uniform=9.2, frequencies=6.0, start=9.6)


@pytest.mark.parametrize(
    ("training", "held_out", "learning", "because"),
    [
        (9.15, 9.5, False, "no better than guessing evenly"),
        (9.15, 9.0, False, "but it falls"),
        (5.95, 6.1, False, "no more than the frequencies"),
        (4.2, 9.9, False, "only the training text gets better"),
        (math.nan, 5.0, False, "not a number"),
        (1.0, 5.0, True, "by heart"),
        (4.2, 4.4, True, "below what frequencies alone give"),
    ],
)
def test_each_case_has_its_sentence(training: float, held_out: float, learning: bool, because: str) -> None:
    found, sentence = judge(training, held_out, 0.5, YARDSTICKS)
    assert found is learning
    assert because in sentence


def test_frequencies_are_beaten_by_a_margin_only() -> None:
    assert beats_frequencies(5.5, YARDSTICKS)
    assert not beats_frequencies(5.9, YARDSTICKS)


def test_entropy_of_even_and_of_single_pieces() -> None:
    even = [torch.arange(8), torch.arange(8)]
    assert math.isclose(unigram_entropy(even, 20), math.log(8), rel_tol=1e-12)
    assert unigram_entropy([torch.full((5,), 3)], 20) == 0
