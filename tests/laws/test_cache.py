"""Decoding step by step equals reading the whole target at once: with beams, reordered, and when sentences leave."""

import pytest
import torch
from parity.small import VOCABULARY, pairs, sentences, small_model
from torch import Tensor

from surd.models.seq2seq import Seq2Seq
from surd.nn.cache import GROWTH
from surd.nn.norm import NormOrder
from surd.nn.ragged import Ragged
from surd.nn.special import BOS
from surd.nn.tying import Tying

SOURCE = (5, 1, 8)
STEPS = GROWTH + 4
"""More steps than a cache first has room for."""


@pytest.fixture(params=list(NormOrder))
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return small_model(norm_order=request.param, output_bias=True, tying=Tying.OUTPUT).eval()


def last_logits(model: Seq2Seq, source: Ragged, read: Tensor, beam: int) -> Tensor:
    """By the whole model: for each row the scores after all it has read, `(rows, V)`; rows are sentence-major."""
    sources = [part.tolist() for part in source.tokens.split(source.lengths) for _ in range(beam)]
    target = Ragged.from_lists(read.tolist())
    states = model(Ragged.from_lists(sources), target)
    return model.logits(states).view(len(read), read.shape[1], -1)[:, -1]


def encoded(lengths: tuple[int, ...] = SOURCE) -> Ragged:
    source, _, _ = pairs(sentences(lengths), sentences(lengths))
    return source


@torch.no_grad()
def test_greedy_rows_equal_the_whole(model: Seq2Seq) -> None:
    source, target, _ = pairs(sentences(SOURCE), sentences((STEPS,) * 3))
    cache = model.start(model.encode(source))
    expected = model.logits(model(source, target)).view(3, STEPS + 1, -1)
    for position, tokens in enumerate(target.tokens.view(3, -1).T):
        assert cache.position == position
        assert (model.step(tokens, cache) - expected[:, position]).abs().max() <= 1e-12


@pytest.mark.parametrize("beam", [2, 3])
@torch.no_grad()
def test_beams_reordered_and_leaving_equal_the_whole(model: Seq2Seq, beam: int) -> None:
    """After each step the rows are shuffled inside their sentences, some dropped and some doubled; sentences leave."""
    source = encoded()
    cache = model.start(model.encode(source), beam)
    read = torch.full((len(source) * beam, 1), BOS)
    for step in range(STEPS):
        logits = model.step(read[:, -1], cache)
        assert logits.dtype == torch.float64
        assert (logits - last_logits(model, source, read, beam)).abs().max() <= 1e-12
        first = torch.arange(len(source))[:, None] * beam
        rows = (first + torch.randint(beam, (len(source), beam))).flatten()
        cache.reorder(rows)
        read = torch.cat([read[rows], torch.randint(4, VOCABULARY, (len(rows), 1))], 1)
        if step in (3, GROWTH):
            kept = torch.tensor([2, 0] if step == 3 else [1])
            cache.keep(kept)
            read = read.view(len(source), beam, -1)[kept].flatten(0, 1)
            parts = source.tokens.split(source.lengths)
            source = Ragged.from_lists([parts[number].tolist() for number in kept.tolist()])


@torch.no_grad()
def test_sentences_of_one_length_that_need_no_padding_need_no_mask(model: Seq2Seq) -> None:
    source = encoded((15, 15))  # 16 with the end
    cache = model.start(model.encode(source), 2)
    assert cache.mask.added is None
    read = torch.full((4, 1), BOS)
    assert (model.step(read[:, 0], cache) - last_logits(model, source, read, 2)).abs().max() <= 1e-12
    cache.keep(torch.tensor([1]))
    parts = source.tokens.split(source.lengths)
    source, read = Ragged.from_lists([parts[1].tolist()]), torch.tensor([[BOS, 5], [BOS, 6]])
    assert (model.step(read[:, 1], cache) - last_logits(model, source, read, 2)).abs().max() <= 1e-12


@torch.no_grad()
def test_source_keys_are_not_copied_for_a_beam(model: Seq2Seq) -> None:
    cache = model.start(model.encode(encoded()), 7)
    assert all(key.shape[0] == len(SOURCE) for key, _ in cache.source)


@torch.no_grad()
def test_bf16_scores_come_back_in_fp32() -> None:
    model = small_model(torch.float32).eval()
    model.compute_dtype = torch.bfloat16
    source = encoded()
    read = torch.full((3, 1), BOS)
    logits = model.step(read[:, 0], model.start(model.encode(source)))
    assert logits.dtype == torch.float32
    model.compute_dtype = torch.float32
    assert (logits - last_logits(model, source, read, 1)).abs().max() < 0.1
