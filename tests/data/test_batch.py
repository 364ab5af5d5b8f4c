"""Batches: within their bound, of like length, and shuffled in blocks that cover everything once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surd.data.batch import Batching, blocks, by_length, cut
from surd.errors import Faults

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 200))
def test_batches_keep_within_their_bound_and_are_as_large_as_it_allows(
    lengths: list[tuple[int, int]], tokens: int
) -> None:
    source, target = np.array(lengths).T
    bounds = cut(source, target, tokens)
    assert bounds[0] == 0 and bounds[-1] == len(source) and (np.diff(bounds) > 0).all()

    def padded(first: int, last: int) -> int:
        return (last - first) * int(max(source[first:last].max(), target[first:last].max()))

    for first, last in pairwise(bounds):
        assert padded(first, last) <= tokens or last - first == 1
        assert last == len(source) or padded(first, last + 1) > tokens


@given(LENGTHS)
def test_the_order_is_by_length_and_uses_each_pair_once(lengths: list[tuple[int, int]]) -> None:
    source, target = np.array(lengths).T
    order = by_length(source, target, np.arange(len(source)))
    assert sorted(order) == list(range(len(source)))
    longest = np.maximum(source, target)[order]
    assert (np.diff(longest) >= 0).all()


def test_ties_are_broken_by_what_is_given() -> None:
    same = np.full(6, 4)
    tie = np.array([5, 1, 4, 0, 3, 2])
    assert by_length(same, same, tie).tolist() == np.argsort(tie).tolist()


def padding(source: np.ndarray, target: np.ndarray, order: np.ndarray) -> float:
    """Share of the cells of both sides that hold no token."""
    source, target = source[order], target[order]
    padded = sum(
        (last - first) * (source[first:last].max() + target[first:last].max())
        for first, last in pairwise(cut(source, target, 2048))
    )
    return 1 - (source.sum() + target.sum()) / padded


def test_little_of_a_batch_is_padding() -> None:
    """Lengths as they are in translation: log-normal, and the sides go together."""
    random = np.random.default_rng(0)
    source = np.clip(np.exp(random.normal(2.6, 0.35, 30_000)), 2, 80).astype(int)
    target = np.clip(source * np.exp(random.normal(0, 0.15, 30_000)), 2, 80).astype(int)
    ours = padding(source, target, by_length(source, target, random.random(30_000)))
    assert ours < 0.025
    assert ours < 0.6 * padding(source, target, np.lexsort((source, target)))


@given(st.integers(0, 500), st.integers(1, 600), st.integers(0, 5))
def test_blocks_cover_everything_once(pairs: int, pool: int, seed: int) -> None:
    pools = list(blocks(pairs, pool, np.random.default_rng(seed)))
    assert sorted(np.concatenate(pools).tolist()) == list(range(pairs))
    again = list(blocks(pairs, pool, np.random.default_rng(seed)))
    assert [numbers.tolist() for numbers in pools] == [numbers.tolist() for numbers in again]


def test_pools_are_of_like_size_and_mix_the_corpus() -> None:
    pools = list(blocks(100_000, 9_000, np.random.default_rng(0)))
    sizes = [len(numbers) for numbers in pools]
    assert len(pools) == 12 and max(sizes) < 9_000
    assert min(sizes) > 0.9 * max(sizes)
    assert all(np.mean(numbers) == pytest.approx(50_000, rel=0.25) for numbers in pools)


def test_settings_that_cannot_be_meant() -> None:
    with pytest.raises(Faults) as caught:
        Batching(tokens=0, pool=-1)
    assert caught.value.lines == ("tokens: expected at least 1, found 0", "pool: expected at least 1, found -1")
