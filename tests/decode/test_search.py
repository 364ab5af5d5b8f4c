"""Laws of greedy and beam search that hold for any model."""

from functools import partial

import pytest
import torch
from decode.table import Table

from surd.decode.beam import beam_search
from surd.decode.decoding import Decoding
from surd.decode.generate import batches_by_length, generate
from surd.decode.greedy import greedy
from surd.errors import Faults, SurdError
from surd.nn.special import BOS, EOS, PAD

SOURCES = [[5, 7, 9, 2], [2], [4, 2], [4, 4, 4, 4, 4, 4, 2], [8, 2], [4, 2]]


@pytest.mark.parametrize("length_penalty", [0.0, -0.7])
@pytest.mark.parametrize("levels", [None, 3])
def test_greedy_is_a_beam_of_one(length_penalty: float, levels: int | None):
    """With a length penalty of at most 0 nothing longer can beat what has ended: a beam of one stops there as well."""
    for seed in range(10):
        model = Table(12, seed, levels)
        settings = Decoding(beam=1, length_penalty=length_penalty, factor=1.0, extra=4)
        assert greedy(model, SOURCES, settings) == beam_search(model, SOURCES, settings)


def test_generate_with_a_beam_of_one_is_greedy():
    model = Table(12, 0)
    settings = Decoding(beam=1)
    assert generate(model, SOURCES, settings) == greedy(model, SOURCES, settings)


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_generate_keeps_the_order_and_batches_change_nothing(beam: int, batch_tokens: int):
    model = Table(12, 3)
    settings = Decoding(beam=beam, factor=1.0, extra=5)
    search = greedy if beam == 1 else partial(beam_search, n_best=beam)
    alone = [search(model, [source], settings)[0] for source in SOURCES]
    assert generate(model, SOURCES, settings, batch_tokens, n_best=beam) == alone


def test_nothing_gives_nothing():
    model = Table(6, 0)
    for search in (greedy, beam_search, generate):
        assert search(model, [], Decoding()) == []


@pytest.mark.parametrize("beam", [1, 4])
def test_what_is_found(beam: int):
    """The best come first, no two are the same, scores follow from sums, and nothing special is in the tokens."""
    settings = Decoding(beam=beam, length_penalty=0.8, factor=1.0, extra=3)
    for seed in range(5):
        model = Table(9, seed)
        for source, hypotheses in zip(SOURCES, generate(model, SOURCES, settings, n_best=beam), strict=True):
            assert 1 <= len(hypotheses) <= beam
            assert len({(h.tokens, h.ended) for h in hypotheses}) == len(hypotheses)
            assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
            for hypothesis in hypotheses:
                length = len(hypothesis.tokens) + hypothesis.ended
                assert not {PAD, BOS, EOS} & set(hypothesis.tokens)
                assert length <= settings.limit(len(source))
                assert hypothesis.ended or length == settings.limit(len(source))
                assert hypothesis.score == pytest.approx(hypothesis.log_probability / length**0.8, abs=1e-6)
                assert hypothesis.log_probability == pytest.approx(teacher_forced(model, source, hypothesis), abs=1e-5)


def teacher_forced(model: Table, source: list[int], hypothesis) -> float:
    tokens = (*hypothesis.tokens, EOS) if hypothesis.ended else hypothesis.tokens
    beginnings = [(BOS, *tokens[:n]) for n in range(len(tokens))]
    steps = [model.logits(tuple(source), b).log_softmax(0)[t] for b, t in zip(beginnings, tokens, strict=True)]
    return sum(step.item() for step in steps)


class Endless(Table):
    """Never wants to stop."""

    def draw(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> torch.Tensor:
        return super().draw(source, beginning).index_fill(0, torch.tensor([EOS]), -1e9)


@pytest.mark.parametrize("beam", [1, 3])
def test_the_limit_closes_a_hypothesis_as_it_is(beam: int):
    settings = Decoding(beam=beam, factor=1.5, extra=2)
    for source, hypotheses in zip(SOURCES, generate(Endless(9, 0), SOURCES, settings, n_best=beam), strict=True):
        assert {len(h.tokens) for h in hypotheses} == {int(1.5 * len(source)) + 2}
        assert not any(h.ended for h in hypotheses)


class Divided(Table):
    """Each source says at its first token how long its output is: sentences leave the batch one after another."""

    def draw(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> torch.Tensor:
        logits = torch.full((self.vocabulary,), -30.0)
        logits[EOS if len(beginning) > source[0] else 4] = 0.0
        return logits


@pytest.mark.parametrize("beam", [1, 2])
def test_finished_sentences_leave_the_batch(beam: int):
    model = Divided(20, 0)
    lengths = [4, 15, 9, 4]
    settings = Decoding(beam=beam, length_penalty=0.0)
    found = (greedy if beam == 1 else beam_search)(model, [[length, 2] for length in lengths], settings)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == lengths
    assert model.rows == beam * sum(length + 1 for length in lengths)


@pytest.mark.parametrize("beam", [1, 2])
def test_the_model_comes_back_in_its_mode(beam: int):
    for training in (True, False):
        model = Table(6, 0).train(training)
        generate(model, [[2]], Decoding(beam=beam))
        assert model.training == training


class Broken(Table):
    def draw(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> torch.Tensor:
        return torch.full((self.vocabulary,), float("nan"))


@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_of_no_numbers_is_refused(beam: int):
    with pytest.raises(SurdError, match="not numbers"):
        generate(Broken(9, 0), SOURCES, Decoding(beam=beam))


def test_batches_are_bounded_and_complete():
    lengths = [3, 9, 1, 1, 7, 2, 30, 2]
    batches = batches_by_length(lengths, 10)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= 10 for batch in batches)
    assert batches == [[6], [1], [4], [0, 5, 7], [2, 3]]


@pytest.mark.parametrize("n_best", [0, 4])
def test_no_more_is_asked_for_than_the_beam_holds(n_best: int):
    with pytest.raises(SurdError, match=rf"n_best: expected 1 to beam \(3\), found {n_best}"):
        generate(Table(9, 0), SOURCES, Decoding(beam=3), n_best=n_best)


def test_all_faults_of_the_settings_are_told_at_once():
    with pytest.raises(Faults) as refused:
        Decoding(beam=0, length_penalty=float("nan"), factor=-1.0, extra=0)
    assert len(refused.value.lines) == 4
