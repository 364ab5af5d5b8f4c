"""Paired bootstrap: sacreBLEU's figures for BLEU, the laws of a test for the rates."""

import random

import numpy
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from surd.metrics.bleu import BLEU, ChrF
from surd.metrics.error_rate import accuracy, character_error_rate, phone_error_rate, word_error_rate
from surd.metrics.significance import RESAMPLES, compare, p_value

WORDS = ["a", "man", "and", "two", "women", "walk", "down", "the", "long", "street", "with", "their", "dog"]


def corrupted(lines: list[str], share: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split()) for line in lines]


LINES = [" ".join(random.Random(seed).choices(WORDS, k=8)) for seed in range(80)]
REFERENCES = [[line] for line in LINES]
BETTER, WORSE = corrupted(LINES, 0.15, seed=1), corrupted(LINES, 0.4, seed=2)


def test_bleu_and_chrf_equal_sacrebleus_own_test() -> None:
    comparisons = compare([BLEU(), ChrF()], BETTER, WORSE, REFERENCES)
    metrics = {"BLEU": sacrebleu.BLEU(), "chrF2": sacrebleu.CHRF()}
    test = PairedTest([("other", WORSE), ("system", BETTER)], metrics, [LINES], test_type="bs", n_samples=RESAMPLES)
    signatures, results = test()
    for comparison in comparisons:
        other, system = results[comparison.name]
        assert (comparison.system.score, comparison.other.score) == (system.score, other.score)
        assert comparison.system.mean == pytest.approx(system.mean)
        assert comparison.system.high - comparison.system.low == pytest.approx(2 * system.ci)
        assert comparison.other.mean == pytest.approx(other.mean)
        assert comparison.p_value == system.p_value < 0.01
        assert comparison.signature == str(signatures[comparison.name])


def test_rates_find_a_real_difference_and_their_interval_holds_the_score() -> None:
    metrics = [phone_error_rate, character_error_rate]
    for metric, comparison in zip(metrics, compare(metrics, BETTER, WORSE, REFERENCES), strict=True):
        assert comparison.p_value < 0.01
        assert comparison.system.score == metric(BETTER, REFERENCES).value
        for estimate in (comparison.system, comparison.other):
            assert estimate.low < estimate.score < estimate.high
            assert abs(estimate.mean - estimate.score) < 1
        assert comparison.signature.endswith("|bs:1000|seed:12345")


def test_a_system_does_not_differ_from_itself() -> None:
    for comparison in compare([BLEU(), phone_error_rate, word_error_rate], BETTER, list(BETTER), REFERENCES):
        assert comparison.p_value == 1
        assert comparison.system == comparison.other


def test_swapping_the_systems_keeps_the_p_value() -> None:
    forward = compare([word_error_rate], BETTER, WORSE, REFERENCES)[0]
    backward = compare([word_error_rate], WORSE, BETTER, REFERENCES)[0]
    assert forward.p_value == backward.p_value
    assert forward.system == backward.other


def test_the_interval_agrees_with_the_binomial() -> None:
    hypotheses = ["right"] * 300 + ["wrong"] * 100
    estimate = compare([accuracy], hypotheses, hypotheses, [["right"]] * 400)[0].system
    half = 1.96 * (0.75 * 0.25 / 400) ** 0.5 * 100
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half, rel=0.1)


def test_between_equal_systems_p_is_below_a_level_about_as_often_as_the_level_says() -> None:
    draws = numpy.random.default_rng(7)
    found = 0
    for _ in range(400):
        difference = draws.normal(size=60)  # per line, of two systems of the same quality
        means = difference[draws.integers(60, size=(RESAMPLES, 60))].mean(axis=1)
        found += p_value(means, difference.mean()) < 0.1
    assert 20 <= found <= 62  # 40 expected, with a standard deviation of 6
