"""Loops: what one is, and an output that goes in circles is replaced while no other is touched."""

from itertools import groupby

import pytest
import torch
from decode.table import Table
from decode.test_search import teacher_forced
from hypothesis import given, settings
from hypothesis import strategies as some

from surd.decode.decoding import Decoding, Hypothesis
from surd.decode.draw import draw
from surd.decode.generate import Wishes, generate, generate_unlooped
from surd.decode.loops import loops, most_repeats, next_in_circles
from surd.decode.sample import Sampling
from surd.nn.special import BOS, EOS

SETTINGS = Decoding(factor=2.0, extra=20)
SOURCE = [*range(10, 19), EOS]  # an output of it has at most 40 tokens


def found(tokens: list[int], ended: bool = True) -> Hypothesis:
    return Hypothesis(tuple(tokens), -1.0, -1.0, ended)


def most_repeats_plainly(tokens: list[int]) -> int:
    """The most times that a block stands in a row, by looking everywhere."""
    best = 1
    for begin in range(len(tokens)):
        for period in range(1, len(tokens) - begin + 1):
            block, count = tokens[begin : begin + period], 1
            while tokens[begin + count * period : begin + (count + 1) * period] == block:
                count += 1
            best = max(best, count)
    return best


@settings(max_examples=100, deadline=None, derandomize=True)
@given(some.lists(some.integers(4, 6), min_size=1, max_size=14))
def test_repeats_are_counted(tokens: list[int]) -> None:
    assert most_repeats(tokens) == most_repeats_plainly(tokens)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(some.lists(some.integers(4, 5), max_size=14), some.integers(1, 4))
def test_only_what_would_complete_a_block_once_more_is_withheld(tokens: list[int], allowed: int) -> None:
    for token in range(4, 7):
        longer = [*tokens, token]
        ends = any(
            longer[-period * (allowed + 1) :] == longer[-period:] * (allowed + 1)
            for period in range(1, len(longer) + 1)
        )
        assert (token in next_in_circles(tokens, allowed)) == ends


@pytest.mark.parametrize(
    ("tokens", "ended", "expected"),
    [
        ([4, 5, 6, 4, 5, 6, 4, 5, 6, 7], True, False),  # three times is style
        ([7, *[4] * 9], True, False),  # a thousand million: nine noughts, and an end
        ([7, *[4] * 25, 8], True, True),  # more than half of what there may be
        ([7, *[4, 5, 6] * 8], True, True),
        ([*range(20, 35), *[4, 5] * 12, 4], False, True),  # closed by the limit while it went round
        ([*range(20, 46), *[4] * 14], False, True),
        ([*[4] * 14, *range(20, 46)], False, False),  # it came out of it
        ([*range(20, 60)], False, False),
        ([*range(20, 48), *[4] * 12], False, True),
        ([*range(20, 49), *[4] * 11], False, False),  # too short for a loop
        ([], True, False),
    ],
)
def test_what_a_loop_is(tokens: list[int], ended: bool, expected: bool) -> None:
    assert loops(found(tokens, ended), SOURCE, SETTINGS) == expected


def test_what_the_source_repeats_may_be_repeated() -> None:
    laughter = [4, 5] * 12
    assert loops(found(laughter), [*range(10, 22), EOS], Decoding(factor=1.0, extra=20))
    assert not loops(found(laughter), [*laughter, EOS], Decoding(factor=1.0, extra=20))
    assert not loops(found([4, 5] * 15), [*laughter, EOS], Decoding(factor=1.0, extra=20))


class Circling(Table):
    """After sources that begin with 4 it would write 5 6 5 6 … for ever, a little less gladly something else."""

    def draw(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> torch.Tensor:
        logits = super().draw(source, beginning)
        if source[0] == 4:
            logits[5 + len(beginning) % 2] += 9.0
            logits[EOS] -= 3.0
        else:
            logits[EOS] += 3.0
        return logits


SOURCES = [[4, 7, 2], [5, 4, 2], [2], [4, 8, 8, 9, 8, 8, 9, 2], [6, 2]]


@pytest.mark.parametrize("beam", [1, 3])
def test_an_output_that_loops_is_replaced_and_no_other_is_touched(beam: int) -> None:
    model, decoding = Circling(12, 0), Decoding(beam=beam, factor=1.0, extra=20)
    before = generate(model, SOURCES, decoding, n_best=beam)
    after, looped = generate_unlooped(model, SOURCES, decoding, n_best=beam)
    assert looped.keys() == {0, 3} and all(0 in places for places in looped.values())
    for number, (source, old, new) in enumerate(zip(SOURCES, before, after, strict=True)):
        if number not in looped:
            assert new == old
            continue
        assert most_repeats(old[0].tokens) > 8
        for hypothesis in new:
            assert most_repeats(hypothesis.tokens) <= most_repeats(source)
            assert hypothesis.log_probability == pytest.approx(teacher_forced(model, source, hypothesis), abs=1e-4)
    alone = [generate_unlooped(model, [source], decoding, n_best=beam)[0][0] for source in SOURCES]
    assert alone == after


def test_a_prefix_may_repeat_itself() -> None:
    prefix = (7, *[5] * 9)
    decoding = Decoding(beam=2, factor=1.0, extra=20)
    wishes = Wishes(prefixes=[prefix], guarded=True)
    [[best]] = generate(Circling(12, 0), [[4, 2]], decoding, wishes=wishes)
    assert best.tokens[: len(prefix)] == prefix
    assert next(len(list(same)) for token, same in groupby(best.tokens) if token == 5) == 9


class Wavering(Table):
    """For source 4 it would write 7 and end; what it likes second is 5 6 5 6 … for ever."""

    def draw(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> torch.Tensor:
        logits = super().draw(source, beginning)
        if beginning == (BOS,):
            logits[7], logits[5], logits[8] = 20.0, 19.0, 9.0
        elif beginning[1] == 5:
            logits[6 - len(beginning) % 2] += 30.0 if source[0] == 4 else 0.0
        else:
            logits[EOS] += 30.0
        return logits


def test_each_of_several_outputs_is_guarded_and_the_others_stay() -> None:
    decoding = Decoding(beam=2, length_penalty=0.0, factor=1.0, extra=20)
    model, sources = Wavering(12, 0), [[4, 2], [6, 2]]
    before = generate(model, sources, decoding, n_best=2)
    after, looped = generate_unlooped(model, sources, decoding, n_best=2)
    assert looped == {0: [1]}
    assert after[1] == before[1]
    (best, circling), (same, other) = before[0], after[0]
    assert loops(circling, sources[0], decoding) and not loops(other, sources[0], decoding)
    assert same == best and other.tokens != best.tokens and other.score <= best.score
    assert other.log_probability == pytest.approx(teacher_forced(model, sources[0], other), abs=1e-4)
    assert generate_unlooped(model, sources[:1], decoding, n_best=2)[0] == after[:1]


def test_a_draw_that_loops_is_drawn_again_by_its_own_numbers() -> None:
    model, decoding, source = Wavering(12, 0), Decoding(factor=1.0, extra=20), [4, 2]
    seeds = [list(range(12))]
    wishes = Wishes(sampling=Sampling(temperature=2.0), seeds=seeds)
    [before] = draw(model, [source], decoding, Sampling(temperature=2.0), seeds)
    [after], looped = generate_unlooped(model, [source], decoding, wishes=wishes)
    places = [place for place, one in enumerate(before) if loops(one, source, decoding)]
    assert looped == {0: places} and 0 < len(places) < 12
    kept = [one for place, one in enumerate(before) if place not in places]
    assert len(after) == 12 and all(one in after for one in kept)
    for place in places:
        [[alone]], _ = generate_unlooped(
            model, [source], decoding, wishes=Wishes(sampling=Sampling(temperature=2.0), seeds=[[place]])
        )
        assert alone in after and not loops(alone, source, decoding)
