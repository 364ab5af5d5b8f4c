"""The chunked loss against torch's cross-entropy: value and gradients for any chunks and any size of the logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surd.nn import loss as loss_module
from surd.nn.loss import Augmented, Terms, smoothed_cross_entropy

TOKENS, D_MODEL, VOCABULARY = 200, 16, 37


Inputs = tuple[Tensor, Tensor, Tensor | None]
"""hidden, weight, bias"""


def leaves(dtype: torch.dtype = torch.float64, size: float = 1.0, bias: bool = True) -> tuple[*Inputs, Tensor]:
    """hidden, weight, bias, labels; `size` multiplies the logits."""
    hidden = (size * torch.randn(TOKENS, D_MODEL, dtype=dtype)).requires_grad_()
    weight = (torch.randn(VOCABULARY, D_MODEL, dtype=dtype) * D_MODEL**-0.5).requires_grad_()
    offset = torch.randn(VOCABULARY, dtype=dtype).requires_grad_() if bias else None
    return hidden, weight, offset, torch.randint(VOCABULARY, (TOKENS,))


def reference(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), labels, label_smoothing=smoothing, reduction="sum")


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


def compare(inputs: Inputs, labels: Tensor, smoothing: float, allowed: float) -> None:
    """Value and gradients; the loss is multiplied so that the incoming gradient is not one."""
    wanted = [x for x in inputs if x is not None]
    sums = smoothed_cross_entropy(*inputs, labels, smoothing)
    expected = reference(*inputs, labels, smoothing)
    assert relative(sums.loss, expected) <= allowed
    assert relative(sums.nll, reference(*inputs, labels, 0.0)) <= allowed
    found, wished = (torch.autograd.grad(loss * 0.37, wanted) for loss in (sums.loss, expected))
    for ours, theirs in zip(found, wished, strict=True):
        assert relative(ours, theirs) <= allowed


# Chunks have at least 64 rows: one chunk, 3 with a rest, a rest of one row, a chunk for each 100.
@pytest.mark.parametrize("rows", [10_000, 64, 199, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_value_and_gradients_equal_torch(
    monkeypatch: pytest.MonkeyPatch, rows: int, smoothing: float, bias: bool
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_NUMBERS", {"cpu": rows * VOCABULARY})
    hidden, weight, offset, labels = leaves(bias=bias)
    compare((hidden, weight, offset), labels, smoothing, 1e-12)


@pytest.mark.parametrize("size", [1e-6, 30.0, 300.0, 3000.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_logits(monkeypatch: pytest.MonkeyPatch, size: float, dtype: torch.dtype) -> None:
    """From a flat softmax to exponentials that overflow and label probabilities that underflow."""
    monkeypatch.setattr(loss_module, "CHUNK_NUMBERS", {"cpu": 64 * VOCABULARY})
    hidden, weight, offset, labels = leaves(dtype, size)
    if size >= 3000:
        assert F.linear(hidden, weight, offset).exp().isinf().any()
    compare((hidden, weight, offset), labels, 0.1, 1e-12 if dtype is torch.float64 else 1e-5)


@pytest.mark.parametrize("shift", [-2000.0, 2000.0], ids=["all exponentials vanish", "all overflow"])
def test_only_some_chunks_leave_the_range(monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_NUMBERS", {"cpu": 64 * VOCABULARY})
    hidden, weight, offset, labels = leaves()
    with torch.no_grad():
        weight[:, 0] = 1.0  # so that the first feature moves all logits of its row alike
        hidden[150, 0] = shift
    # The logits themselves are rounded at their own size here.
    compare((hidden, weight, offset), labels, 0.1, 1e-10)


TERMS = {
    "z": Terms(z=0.1),
    "augmented": Terms(augmented=Augmented(gamma=0.7, temperature=3.0)),
    "both": Terms(z=0.02, augmented=Augmented(gamma=1.3, temperature=20.0)),
}


@pytest.mark.parametrize("size", [1.0, 300.0], ids=["usual", "out of range"])
@pytest.mark.parametrize("name", TERMS)
def test_added_terms_equal_their_equations(monkeypatch: pytest.MonkeyPatch, name: str, size: float) -> None:
    """(ln Z)² and the divergence from the label's neighbourhood, written as they stand in the papers."""
    monkeypatch.setattr(loss_module, "CHUNK_NUMBERS", {"cpu": 64 * VOCABULARY})
    hidden, weight, offset, labels = leaves(size=size)
    embedding, terms = torch.randn(VOCABULARY, D_MODEL, dtype=torch.float64, requires_grad=True), TERMS[name]
    logits = F.linear(hidden, weight, offset)
    expected = reference(hidden, weight, offset, labels, 0.1) + terms.z * logits.logsumexp(1).square().sum()
    if terms.augmented:
        gamma, temperature = terms.augmented.gamma, terms.augmented.temperature
        near = (embedding[labels] @ embedding.T / temperature).softmax(1).detach()
        found = (logits / temperature).log_softmax(1)
        expected = expected + gamma * temperature * F.kl_div(found, near, reduction="sum")
    ours = smoothed_cross_entropy(hidden, weight, offset, labels, 0.1, terms, embedding).loss
    assert relative(ours, expected) <= 1e-12
    inputs = [hidden, weight, offset]
    for mine, theirs in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), strict=True):
        assert relative(mine, theirs) <= 1e-11


def test_gradcheck() -> None:
    hidden, weight, offset, labels = leaves()
    hidden, labels = hidden.detach()[:5].requires_grad_(), labels[:5]
    assert torch.autograd.gradcheck(lambda *x: smoothed_cross_entropy(*x, labels, 0.1).loss, (hidden, weight, offset))


@pytest.mark.parametrize("wanted", [("hidden",), ("weight",), ("weight", "bias"), ("hidden", "bias")])
def test_any_part_may_be_frozen(wanted: tuple[str, ...]) -> None:
    inputs = dict(zip(("hidden", "weight", "bias"), leaves()[:3], strict=True))
    labels = torch.randint(VOCABULARY, (TOKENS,))
    for name, x in inputs.items():
        x.requires_grad_(name in wanted)
    expected = torch.autograd.grad(reference(*inputs.values(), labels, 0.1), [inputs[name] for name in wanted])
    found = torch.autograd.grad(
        smoothed_cross_entropy(*inputs.values(), labels, 0.1).loss, [inputs[name] for name in wanted]
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert relative(ours, theirs) <= 1e-12


def test_a_frozen_model_learns_its_bias_alone() -> None:
    hidden, weight, offset, labels = leaves()
    hidden, weight = hidden.detach(), weight.detach()
    (expected,) = torch.autograd.grad(reference(hidden, weight, offset, labels, 0.1), offset)
    (found,) = torch.autograd.grad(smoothed_cross_entropy(hidden, weight, offset, labels, 0.1).loss, offset)
    assert relative(found, expected) <= 1e-12


def test_without_gradient_the_hits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_NUMBERS", {"cpu": 64 * VOCABULARY})
    hidden, weight, offset, labels = leaves()
    with torch.no_grad():
        best = F.linear(hidden, weight, offset).argmax(1)
        labels[::3] = best[::3]
        sums = smoothed_cross_entropy(hidden, weight, offset, labels, 0.1)
    assert sums.correct.item() == (best == labels).sum().item()
    assert sums.tokens == TOKENS
    assert relative(sums.loss, reference(hidden, weight, offset, labels, 0.1)) <= 1e-12


def test_bf16_activations_with_fp32_weights() -> None:
    """Close to what the rounded numbers give in float64; gradients of the weights stay in fp32."""
    hidden, weight, offset, labels = leaves(torch.float32)
    rough = hidden.detach().bfloat16().requires_grad_()
    sums = smoothed_cross_entropy(rough, weight, offset, labels, 0.1)
    sums.loss.backward()
    exact = [x.detach().bfloat16().double().requires_grad_() for x in (hidden, weight, offset)]
    expected = reference(*exact, labels, 0.1)
    expected.backward()
    assert sums.loss.dtype == weight.grad.dtype == torch.float32
    assert rough.grad.dtype == torch.bfloat16
    assert relative(sums.loss.double(), expected) <= 5e-3
    for ours, theirs in zip((rough, weight, offset), exact, strict=True):
        assert (ours.grad.double() - theirs.grad).norm() <= 0.02 * theirs.grad.norm()


def test_one_token() -> None:
    hidden, weight, offset, labels = leaves()
    compare((hidden[:1], weight, offset), labels[:1], 0.1, 1e-12)
