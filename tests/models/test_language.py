"""The language model: what it sums, its tie, and that it learns to copy."""

import copy
from pathlib import Path

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from parity.small import VOCABULARY, sentences, small_language, windows

from surd.files import load_tensors
from surd.models.architecture import Architecture
from surd.models.language import Language
from surd.models.weights import load_weights, save_weights
from surd.nn.norm import NormOrder
from surd.nn.position import LearnedPosition, Position, Rotary, Sinusoidal
from surd.nn.ragged import Ragged
from surd.nn.tying import Tying


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_sums_over_real_tokens(smoothing: float) -> None:
    model = small_language(output_bias=True)
    text, labels = windows(sentences())
    sums = model.loss(text, labels, smoothing)
    logits = model.logits(model(text))
    assert sums.tokens == len(labels)
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    assert sums.loss.item() == pytest.approx(expected.item(), abs=1e-10)
    assert sums.nll.item() == pytest.approx(F.cross_entropy(logits, labels, reduction="sum").item(), abs=1e-10)


@pytest.mark.parametrize("tying", [Tying.OUTPUT, Tying.NONE])
def test_the_tie_is_kept_and_stored_once(tying: Tying, tmp_path: Path) -> None:
    model = small_language(torch.float32, tying=tying)
    assert (model.text.table is model.projection.weight) == (tying is Tying.OUTPUT)
    unique, saved = model.parameter_counts()
    assert saved == (VOCABULARY * 32 if tying is Tying.OUTPUT else 0)
    assert unique == sum(weight.numel() for weight in model.parameters())
    for twin in (copy.deepcopy(model), copy.deepcopy(model).to(torch.bfloat16)):
        twin.verify_ties()
    save_weights(model, tmp_path / "model.safetensors")
    stored = load_tensors(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == unique
    again = small_language(torch.float32, tying=tying)
    load_weights(again, tmp_path / "model.safetensors")
    text, _ = windows(sentences())
    assert torch.equal(again(text), model(text))
    with torch.no_grad():
        again.projection.weight = torch.nn.Parameter(again.projection.weight.detach().clone())
    if tying is Tying.OUTPUT:
        with pytest.raises(AssertionError, match="output tie"):
            again.verify_ties()


def test_dropout_acts_in_training_only() -> None:
    model = small_language(dropout=0.3, attention_dropout=0.2)
    text, _ = windows(sentences())
    assert not torch.equal(model(text), model(text))
    assert torch.equal(model.eval()(text), model(text))


def test_bf16_activations_keep_fp32_weights_and_score_in_fp32() -> None:
    model = small_language(torch.float32).eval()
    tokens = torch.tensor(sentences((6, 6)))
    with torch.no_grad():
        exact, _ = model.read(tokens)
        model.compute_dtype = torch.bfloat16
        rough, past = model.read(tokens)
        stepped = model.step(tokens[:, 0], past)
    assert rough.dtype == stepped.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.2
    text, labels = windows(sentences())
    model.loss(text, labels).loss.backward()
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in model.parameters())


COPIED, ALPHABET = 5, 12
SEPARATOR = 4


def batch(rows: int) -> tuple[Ragged, torch.Tensor]:
    """Five random tokens, a separator, the same five again."""
    words = torch.randint(SEPARATOR + 1, SEPARATOR + 1 + ALPHABET, (rows, COPIED)).tolist()
    return windows([[*word, SEPARATOR, *word] for word in words])


@pytest.mark.parametrize("order", list(NormOrder))
@pytest.mark.parametrize("position", [LearnedPosition(length=16), Sinusoidal(), Rotary()], ids=lambda p: p.kind)
def test_it_learns_to_copy(order: NormOrder, position: Position) -> None:
    """To more than 99 % of the tokens behind the separator.

    Without positions a place is known by the tokens before it alone: that takes many more updates than these.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    torch.manual_seed(1)
    model = Language(
        Architecture(
            d_model=64, heads=4, d_k=16, d_ff=128, decoder_layers=2, dropout=0.0, norm_order=order, tying=Tying.OUTPUT,
            position=position,
        ),
        SEPARATOR + 1 + ALPHABET,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.98), fused=True)
    steps = 300
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min((step + 1) / 40, 1 - step / steps)
        text, labels = batch(64)
        sums = model.loss(text, labels)
        optimizer.zero_grad()
        (sums.loss / sums.tokens).backward()
        optimizer.step()
    text, labels = batch(200)
    with torch.no_grad():
        right = (model.logits(model(text)).argmax(1) == labels).view(200, -1)[:, COPIED + 1 : -1]
    jaxtyping.config.update("jaxtyping_disable", False)
    assert right.float().mean() > 0.99, right.float().mean(0)
