"""What holds for a language model with any member of any family: causal, blind to padding, cached, saved, learnt."""

from pathlib import Path

import pytest
import torch
from laws.members import variants
from parity.small import VOCABULARY, sentences, small_language, windows

from surd.models.language import Language
from surd.models.weights import load_weights, save_weights
from surd.nn.cache import GROWTH
from surd.nn.norm import NormOrder

VARIANTS = {
    name: change for name, change in variants().items() if "encoder_layers" not in change and "tying" not in change
}
LENGTHS = (7, 2, 6, 4)


@pytest.fixture(params=["post", "pre", *VARIANTS])
def model(request: pytest.FixtureRequest) -> Language:
    orders = {order.value: {"norm_order": order} for order in NormOrder}
    return small_language(**(orders | VARIANTS)[request.param]).eval()


@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(model: Language) -> None:
    texts = sentences(LENGTHS)
    before = model(windows(texts)[0]).split([length + 1 for length in LENGTHS])
    texts[0][4] = 4 + (texts[0][4] - 3) % 30
    after = model(windows(texts)[0]).split([length + 1 for length in LENGTHS])
    assert torch.equal(before[0][:5], after[0][:5])
    assert all(torch.equal(*pair) for pair in zip(before[1:], after[1:], strict=True))
    assert ((before[0][5:] - after[0][5:]).abs().amax(1) > 1e-9).all(), "it and every later position notice"


@torch.no_grad()
def test_a_text_alone_equals_itself_in_a_batch(model: Language) -> None:
    texts = sentences(LENGTHS)
    together = model(windows(texts)[0]).split([length + 1 for length in LENGTHS])
    for text, hidden in zip(texts, together, strict=True):
        assert (model(windows([text])[0]) - hidden).abs().max() <= 1e-11


@pytest.mark.parametrize("read", [1, 5, GROWTH, GROWTH + 1])
@torch.no_grad()
def test_reading_and_going_on_equals_reading_at_once(model: Language, read: int) -> None:
    """Also when rows leave, and when the cache outgrows its first room."""
    total = GROWTH + 6
    tokens = torch.tensor(sentences((total,) * 3))
    text, _ = windows(tokens[:, 1:].tolist())
    expected = model.logits(model(text)).view(3, total, -1)
    tokens = text.tokens.view(3, -1)
    logits, past = model.read(tokens[:, :read])
    assert (logits - expected[:, read - 1]).abs().max() <= 1e-11
    rows = torch.arange(3)
    for place in range(read, total):
        assert past.position == place
        logits = model.step(tokens[rows, place], past)
        assert (logits - expected[rows, place]).abs().max() <= 1e-11
        if place == read + 2:
            past.keep(torch.tensor([2, 0]))
            rows = torch.tensor([2, 0])


def test_every_weight_is_learnt(model: Language) -> None:
    text, labels = windows(sentences(LENGTHS))
    model.loss(text, labels, 0.1).loss.backward()
    for name, weight in model.named_parameters():
        # What is added to all keys of a row alike is invisible to its softmax.
        if not name.endswith("key_norm.bias"):
            assert weight.grad is not None and weight.grad.abs().max() > 1e-9, name


@torch.no_grad()
def test_saved_and_loaded_it_is_the_same(model: Language, tmp_path: Path) -> None:
    save_weights(model, tmp_path / "model.safetensors")
    again = small_language(**vars(model.architecture)).eval()
    load_weights(again, tmp_path / "model.safetensors")
    text, _ = windows(sentences(LENGTHS))
    assert torch.equal(model(text), again(text))


def test_gradients_do_not_come_from_the_future() -> None:
    """The row of a token that is read once gets a gradient from its position on, none from before."""
    model = small_language()
    text, _ = windows([[4, 5, 6, 7, 8, 9], [10, 11]])
    (gradient,) = torch.autograd.grad(model(text)[2].square().sum(), model.text.table)
    read = gradient.abs().sum(1) > 0
    assert read[[1, 4, 5]].all() and not read[[6, 7, 8, 9, 10, 11]].any()
    assert len(read) == VOCABULARY
