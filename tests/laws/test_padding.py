"""Padding changes nothing: each sentence alone gives what it gives in any batch, and so do its gradients."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.small import pairs, sentences, small_model

from surd.nn.norm import NormOrder


@pytest.mark.parametrize("order", list(NormOrder))
@pytest.mark.parametrize("lengths", [((5, 9, 1, 6), (7, 2, 6, 4)), ((3, 3, 3), (4, 4, 4))], ids=["ragged", "full"])
def test_a_sentence_alone_equals_itself_in_a_batch(order: NormOrder, lengths: tuple[tuple[int, ...], ...]) -> None:
    model = small_model(norm_order=order)
    sources, targets = (sentences(side) for side in lengths)
    source, target, _ = pairs(sources, targets)
    together = model(source, target).split(target.lengths)
    for number, hidden in enumerate(together):
        one_source, one_target, _ = pairs([sources[number]], [targets[number]])
        assert (model(one_source, one_target) - hidden).abs().max() <= 1e-12


@pytest.mark.parametrize("order", list(NormOrder))
def test_gradients_of_a_batch_are_the_sum_of_those_of_its_sentences(order: NormOrder) -> None:
    model = small_model(norm_order=order)
    sources, targets = sentences((5, 9, 1, 6)), sentences((7, 2, 6, 4))
    model.loss(*pairs(sources, targets), smoothing=0.1).loss.backward()
    together = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    for source, target in zip(sources, targets, strict=True):
        model.loss(*pairs([source], [target]), smoothing=0.1).loss.backward()
    for name, weight in model.named_parameters():
        assert (weight.grad - together[name]).abs().max() <= 1e-11, name


LENGTHS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=5)


@settings(max_examples=8, deadline=None)
@given(LENGTHS, st.randoms(use_true_random=False))
def test_the_order_of_sentences_does_not_matter(lengths: list[tuple[int, int]], random: Random) -> None:
    """Empty sentences, which are a lone EOS, included."""
    model = small_model(encoder_layers=1, decoder_layers=1)
    sources, targets = (sentences(tuple(side)) for side in zip(*lengths, strict=True))
    order = list(range(len(lengths)))
    random.shuffle(order)
    source, target, _ = pairs(sources, targets)
    expected = model(source, target).split(target.lengths)
    source, target, _ = pairs([sources[number] for number in order], [targets[number] for number in order])
    for number, hidden in zip(order, model(source, target).split(target.lengths), strict=True):
        assert (hidden - expected[number]).abs().max() <= 1e-12
