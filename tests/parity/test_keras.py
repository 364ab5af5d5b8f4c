"""The encoder of docs/learn against the same encoder made of Keras layers, and what the page says of those layers."""

import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.small import shake
from torch import Tensor

from surd.nn.mask import padding_mask
from surd.nn.norm import LayerNorm
from surd.nn.position import Sinusoidal
from surd.nn.ragged import Ragged

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is imported for the first time, by the page

ROOT = Path(__file__).parent.parent.parent
LEARN = runpy.run_path(str(ROOT / "docs" / "learn.py"))
PAGE = ROOT / "docs" / "learn" / "encoder.md"
LENGTHS = [(9, 4, 1, 6), (12, 12, 12), (1,), (1, 33)]


@pytest.fixture(scope="module")
def run() -> tuple[dict[str, Any], dict[int, str]]:
    """The whole page, the blocks for Keras too: what they define, and what each printed."""
    names: dict[str, Any] = {}
    return names, LEARN["run"](PAGE, names, lambda needs: needs in (None, "keras"))


@pytest.fixture(scope="module")
def page(run: tuple[dict[str, Any], dict[int, str]]) -> dict[str, Any]:
    """What the page defines, every weight random, so that no gain of one or bias of zero hides a fault."""
    names, _ = run
    torch.manual_seed(1)
    shake(names["weights"])
    names["copy_weights"](names["theirs"])
    return names


@pytest.fixture(scope="module")
def keras(page: dict[str, Any]) -> Any:
    assert page["keras"].backend.backend() == "torch"
    return page["keras"]


def batch(page: dict[str, Any], lengths: tuple[int, ...]) -> tuple[Tensor, Tensor | None, Tensor]:
    """Random tokens with padding, the mask for our encoder, and where there are tokens."""
    sentences = Ragged.from_lists([torch.randint(4, page["vocabulary"], (length,)).tolist() for length in lengths])
    return sentences.padded(), padding_mask(sentences.layout, torch.float32).added, sentences.layout.real


def test_the_blocks_for_keras_print_what_stands_beneath_them(run: tuple[dict[str, Any], dict[int, str]]) -> None:
    _, printed = run
    blocks = [block for block in LEARN["BLOCK"].finditer(PAGE.read_text(encoding="utf-8")) if block["needs"]]
    assert len(blocks) >= 3
    for block in blocks:
        assert LEARN["agrees"](block["printed"] or "", printed[block.start()]), printed[block.start()]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_states_equal_those_of_keras_layers(page: dict[str, Any], lengths: tuple[int, ...]) -> None:
    tokens, mask, real = batch(page, lengths)
    difference = page["encode"](tokens, mask) - page["theirs"](tokens)
    assert difference[real].abs().max() <= 1e-5


def test_every_weight_of_ours_was_copied(page: dict[str, Any]) -> None:
    theirs = sum(weight.value.numel() for weight in page["theirs"].trainable_weights)
    assert theirs == sum(weight.numel() for weight in page["weights"].parameters())


@pytest.mark.parametrize("fault", ["epsilon", "mask", "position", "factor"])
def test_each_thing_that_the_page_warns_of_breaks_the_parity(
    page: dict[str, Any], keras: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, mask, real = batch(page, LENGTHS[0])
    ours, theirs = page["encode"](tokens, mask), page["theirs"]
    if fault == "epsilon":
        monkeypatch.setattr(theirs.stack[-1].second_norm, "epsilon", keras.layers.LayerNormalization().epsilon)
    elif fault == "mask":
        monkeypatch.setattr(page["keras"].ops, "not_equal", lambda tokens, _: torch.ones_like(tokens, dtype=torch.bool))
    elif fault == "position":
        monkeypatch.setitem(page, "waves", lambda length: torch.zeros(length, page["d_model"]))
    else:
        theirs.embedding.set_weights([page["embedding"].table / 2])
    difference = (ours - theirs(tokens))[real].abs().max()
    theirs.embedding.set_weights([page["embedding"].table])
    assert difference > 1e-4


def test_dropout_is_that_of_keras_in_the_mean(page: dict[str, Any]) -> None:
    """Both drop a tenth at the same places of the stack: the same rms of the sum that training sees first."""
    x = torch.ones(200, page["d_model"])
    ours = page["dropout"](x, page["rate"], True)
    theirs = page["theirs"].dropout(x, training=True)
    for dropped in (ours, theirs):
        assert dropped.mean().item() == pytest.approx(1, abs=0.01)
        assert (dropped == 0).float().mean().item() == pytest.approx(page["rate"], abs=0.01)


def test_positions_are_those_of_the_paper(page: dict[str, Any]) -> None:
    ours = Sinusoidal()(100, page["d_model"], torch.float32, torch.device("cpu"))
    assert (ours - page["waves"](100)).abs().max() <= 1e-6


def test_layer_normalisation_of_keras_has_a_larger_epsilon_and_is_ours_otherwise(keras: Any) -> None:
    x = 0.03 * torch.randn(20, 64)
    default = keras.layers.LayerNormalization()
    assert default.epsilon == 1e-3
    assert (default(x) - LayerNorm(epsilon=1e-3).build(64)(x)).abs().max() <= 1e-5
    assert (default(x) - LayerNorm(epsilon=1e-5).build(64)(x)).abs().max() > 0.3


def test_true_is_visible_in_attention_of_keras(keras: Any) -> None:
    attention = keras.layers.MultiHeadAttention(2, 8)
    x, visible = torch.randn(1, 5, 16), torch.tensor([[[True, True, False, True, False]]])
    _, weights = attention(x, x, attention_mask=visible, return_attention_scores=True)
    assert weights[..., ~visible[0, 0]].abs().max() == 0
    assert weights[..., visible[0, 0]].min() > 0


def test_attention_of_keras_divides_by_the_root_of_key_dim(keras: Any) -> None:
    attention = keras.layers.MultiHeadAttention(2, 8)
    x = torch.randn(1, 5, 16)
    _, weights = attention(x, x, return_attention_scores=True)
    query, key = (dense(x).transpose(1, 2) for dense in (attention.query_dense, attention.key_dense))
    assert (weights - (query @ key.mT / 8**0.5).softmax(-1)).abs().max() <= 1e-6


def test_the_mask_of_an_embedding_is_lost_by_a_product(keras: Any) -> None:
    tokens = torch.tensor([[5, 7, 9, 0, 0]])
    rows = keras.layers.Embedding(20, 16, mask_zero=True)(tokens)
    attention = keras.layers.MultiHeadAttention(2, 8)
    _, kept = attention(rows, rows, return_attention_scores=True)
    assert kept[0, :, :3, 3:].abs().max() == 0
    scaled = rows * 4.0
    _, lost = attention(scaled, scaled, return_attention_scores=True)
    assert lost[0, :, :3, 3:].min() > 0


def test_an_embedding_of_keras_starts_uniform(keras: Any) -> None:
    layer = keras.layers.Embedding(2000, 64, mask_zero=True)
    table = layer(torch.arange(2000))
    assert table.abs().max() <= 0.05
    assert table.square().mean().sqrt().item() == pytest.approx(0.05 / 3**0.5, rel=0.01)
    assert table[0].abs().max() > 0  # the row of padding is drawn like any other
