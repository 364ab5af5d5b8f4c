"""Perplexity: e to the mean loss, with its ends."""

import math

import pytest

from surd.errors import SurdError
from surd.metrics.perplexity import perplexity


def test_a_uniform_guess_over_v_tokens_has_perplexity_v() -> None:
    score = perplexity(nll=50 * math.log(320), tokens=50)
    assert score.value == pytest.approx(320)
    assert not score.higher_is_better
    assert "denominator:tokens and line ends:50" in score.signature


def test_certainty_is_1_and_an_overflow_is_infinite() -> None:
    assert perplexity(nll=0.0, tokens=3).value == 1
    assert perplexity(nll=1e6, tokens=1).value == math.inf


def test_nothing_has_no_perplexity() -> None:
    with pytest.raises(SurdError, match="no target token"):
        perplexity(nll=0.0, tokens=0)
