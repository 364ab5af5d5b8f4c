"""Holding out: by the text of the source alone, whole sources, the right number of them, and repeats found exactly."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surd.data.clean import Fate
from surd.data.hold_out import HeldOut, choose, distinct, gather_references, mark, mark_repeats, text_hash

HASHES = st.lists(st.integers(0, 40).map(lambda number: text_hash(str(number).encode())), max_size=60)


def numpy(hashes: list[int]) -> np.ndarray:
    return np.array(hashes, np.uint64)


def test_the_hash_of_a_text_never_changes() -> None:
    assert text_hash("schön".encode()) == 16027104507019958084


@given(HASHES, st.randoms())
def test_repeats_are_all_but_the_first_of_what_is_usable(hashes: list[int], random: Random) -> None:
    targets = [random.randrange(2) for _ in hashes]
    fates = np.where(np.arange(len(hashes)) % 5 == 3, np.uint8(Fate.EMPTY), np.uint8(Fate.TRAIN))
    expected, seen = fates.copy(), set()
    for number, pair in enumerate(zip(hashes, targets, strict=True)):
        if fates[number] == Fate.TRAIN:
            if pair in seen:
                expected[number] = Fate.DUPLICATE
            seen.add(pair)
    mark_repeats(fates, numpy(hashes), np.array(targets, np.uint32))
    assert fates.tolist() == expected.tolist()


@given(HASHES, st.sampled_from([0.05, 0.3, 0.9, 1, 2, 7, 100]))
def test_chosen_sources_are_the_smallest_that_are_not_too_common(hashes: list[int], wanted: float) -> None:
    everything = np.ones(len(hashes), bool)
    chosen = choose(numpy(hashes), everything, wanted, most=10).tolist()
    sources = sorted(set(hashes))
    fitting = [value for value in sources if hashes.count(value) * 4 < len(hashes)]
    number = min(max(2, round(wanted * len(sources))), 10) if wanted < 1 else wanted
    assert chosen == fitting[: min(number, len(sources) // 2)]
    assert distinct(numpy(hashes), everything) == len(sources)


@given(HASHES)
def test_marking_takes_whole_sources(hashes: list[int]) -> None:
    fates = np.zeros(len(hashes), np.uint8)
    chosen = choose(numpy(hashes), np.ones(len(hashes), bool), 0.2, most=10)
    mark(fates, numpy(hashes), chosen, Fate.HELD_OUT)
    assert fates.tolist() == [Fate.HELD_OUT if value in chosen.tolist() else Fate.TRAIN for value in hashes]


def test_several_lines_with_one_source_are_its_references() -> None:
    rows = gather_references([("b", "1"), ("a", "2"), ("b", "3"), ("b", "1")])
    assert rows == (HeldOut("b", ("1", "3")), HeldOut("a", ("2",)))
