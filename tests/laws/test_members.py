"""What holds for any member of any family: causal, blind to padding, decoded step by step, saved, and with a source."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from laws.members import variants
from parity.small import pairs, sentences, small_model

from surd.models.seq2seq import Seq2Seq
from surd.models.weights import load_weights, save_weights
from surd.part import Part, structure, unstructure

VARIANTS = variants()
SOURCE, TARGET = (5, 9, 1, 6), (7, 2, 6, 4)


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return small_model(**VARIANTS[request.param]).eval()


@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(model: Seq2Seq) -> None:
    sources, targets = sentences(SOURCE), sentences(TARGET)
    source, target, _ = pairs(sources, targets)
    before = model(source, target).split(target.lengths)[0]
    targets[0][4] = 4 + (targets[0][4] - 3) % 30
    source, target, _ = pairs(sources, targets)
    after = model(source, target).split(target.lengths)[0]
    assert torch.equal(before[:5], after[:5])
    assert ((before[5:] - after[5:]).abs().amax(1) > 1e-9).all(), "the token itself and every later position notice"


@torch.no_grad()
def test_a_sentence_alone_equals_itself_in_a_batch(model: Seq2Seq) -> None:
    sources, targets = sentences(SOURCE), sentences(TARGET)
    source, target, _ = pairs(sources, targets)
    for number, hidden in enumerate(model(source, target).split(target.lengths)):
        one_source, one_target, _ = pairs([sources[number]], [targets[number]])
        assert (model(one_source, one_target) - hidden).abs().max() <= 1e-11


@torch.no_grad()
def test_decoding_step_by_step_equals_reading_at_once(model: Seq2Seq) -> None:
    source, target, _ = pairs(sentences(SOURCE), sentences((18,) * 4))
    expected = model.logits(model(source, target)).view(4, 19, -1)
    cache = model.start(model.encode(source))
    for position, tokens in enumerate(target.tokens.view(4, -1).T):
        assert (model.step(tokens, cache) - expected[:, position]).abs().max() <= 1e-11
        if position == 4:
            cache.reorder(torch.arange(4))


@torch.no_grad()
def test_beams_share_the_keys_of_their_source(model: Seq2Seq) -> None:
    source, target, _ = pairs(sentences((5, 3)), sentences((4, 4)))
    expected = model.logits(model(source, target)).view(2, 5, -1)
    cache = model.start(model.encode(source), beam=3)
    for position, tokens in enumerate(target.tokens.view(2, -1).T):
        rows = model.step(tokens.repeat_interleave(3), cache).view(2, 3, -1)
        assert (rows - expected[:, None, position]).abs().max() <= 1e-11


def test_every_weight_is_learnt(model: Seq2Seq) -> None:
    model.loss(*pairs(sentences(SOURCE), sentences(TARGET)), smoothing=0.1).loss.backward()
    for name, weight in model.named_parameters():
        # What is added to all keys of a row alike is invisible to its softmax.
        if not name.endswith("key_norm.bias"):
            assert weight.grad is not None and weight.grad.abs().max() > 1e-9, name


@torch.no_grad()
def test_saved_and_loaded_it_is_the_same(model: Seq2Seq, tmp_path: Path) -> None:
    save_weights(model, tmp_path / "model.safetensors")
    again = small_model(**vars(model.architecture)).eval()
    load_weights(again, tmp_path / "model.safetensors")
    source, target, _ = pairs(sentences(SOURCE), sentences(TARGET))
    assert torch.equal(model(source, target), again(source, target))


def parts() -> dict[str, Part]:
    return {name: part for name, change in VARIANTS.items() for part in change.values() if isinstance(part, Part)}


@pytest.mark.parametrize("name", parts())
def test_it_is_read_as_it_was_written_and_names_its_source(name: str) -> None:
    part = parts()[name]
    assert structure(type(part), unstructure(part)) == part
    told = inspect.getdoc(type(part)) or ""
    assert re.search(r"\b(19|20)\d\d\b|pull request|torch|arXiv", told), f"{name} names no source"
