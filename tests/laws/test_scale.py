"""The attention scale keeps scores of unit queries and keys at variance one, whatever the width of a head."""

import math

import pytest
import torch

from surd.nn.attention import attention
from surd.nn.scale import InverseRoot

PAIRS = 200_000


@pytest.mark.parametrize("d_k", [1, 8, 32, 64, 256])
def test_scores_have_variance_one(d_k: int) -> None:
    """q·k of unit normals has variance d_k; its fourth moment bounds what a sample may show."""
    query, key = torch.randn(PAIRS, d_k), torch.randn(PAIRS, d_k)
    scores = InverseRoot()(d_k) * (query * key).sum(1)
    kurtosis = 3 + 6 / d_k
    assert abs(scores.var().item() - 1) < 5 * math.sqrt((kurtosis - 1) / PAIRS)
    assert abs(scores.mean().item()) < 5 / math.sqrt(PAIRS)


@pytest.mark.parametrize("d_k", [16, 64, 256])
def test_without_it_the_variance_grows_with_the_width(d_k: int) -> None:
    scores = (torch.randn(20_000, d_k) * torch.randn(20_000, d_k)).sum(1)
    assert scores.var().item() == pytest.approx(d_k, rel=0.1)


def test_the_scale_is_the_one_that_attention_uses() -> None:
    """One query, two keys: the weights give the scores' difference back."""
    query, key = (torch.randn(1, 1, length, 9, dtype=torch.float64) for length in (1, 2))
    value = torch.eye(2, dtype=torch.float64)[None, None]
    weights = attention(query, key, value, InverseRoot()(9))[0, 0, 0]
    difference = (query[0, 0, 0] * (key[0, 0, 0] - key[0, 0, 1])).sum() / 3
    assert (weights[0] / weights[1]).log().item() == pytest.approx(difference.item(), abs=1e-12)
