"""One update: accumulation is one big batch, the clip is a norm, a broken batch changes nothing, and it learns."""

import math

import pytest
import torch
from parity.small import VOCABULARY, pairs, sentences, small_model

from surd.data.batch import Batch
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.tying import Tying
from surd.optim.optimizer import AdamW
from surd.optim.schedule import Cosine
from surd.training.step import StepResult, train_step


def batch_of(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    return Batch(*pairs(sources, targets), tuple(range(len(sources))))


def gradient_step(model: Seq2Seq, batches: list[Batch], clip: float | None = None) -> StepResult:
    """With rate 1 and no memory: the weights move by minus the gradient."""
    return train_step(model, batches, torch.optim.SGD(model.parameters(), lr=1.0), clip, smoothing=0.1)


def weights(model: Seq2Seq) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_unequal_micro_batches_equal_one_big_batch() -> None:
    """Every token counts the same: 2, 11 and 4 target sentences of unequal lengths, apart and together."""
    sources = sentences((3, 7, *(5,) * 11, 2, 9, 4, 1))
    targets = sentences((9, 1, *(2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6), 3, 3, 1, 2))
    parts = [(0, 2), (2, 13), (13, 17)]
    one, many = small_model(tying=Tying.ALL), small_model(tying=Tying.ALL)
    many.load_state_dict(one.state_dict())
    together = gradient_step(one, [batch_of(sources, targets)])
    apart = gradient_step(many, [batch_of(sources[a:b], targets[a:b]) for a, b in parts])
    assert (weights(one) - weights(many)).abs().max() <= 1e-12
    for name in ("loss", "nll", "gradient_norm"):
        assert getattr(together, name) == pytest.approx(getattr(apart, name), abs=1e-12)
    assert together.target_tokens == apart.target_tokens == sum(map(len, targets)) + len(targets)
    assert together.source_tokens == apart.source_tokens == sum(map(len, sources)) + len(sources)


def test_the_figures_are_those_of_the_batch() -> None:
    model = small_model()
    batch = batch_of(sentences(), sentences())
    sums = model.loss(batch.source, batch.target, batch.labels, 0.1)
    before = weights(model)
    result = gradient_step(model, [batch])
    assert result.finite
    assert result.loss == pytest.approx(sums.loss.item() / sums.tokens, abs=1e-12)
    assert result.nll == pytest.approx(sums.nll.item() / sums.tokens, abs=1e-12)
    assert result.gradient_norm == pytest.approx((weights(model) - before).norm().item(), rel=1e-9)
    assert all(weight.grad is None for weight in model.parameters()), "no gradient is left for the next step"


@pytest.mark.parametrize("clip", [0.01, 1e6])
def test_a_longer_gradient_is_cut_to_the_clip(clip: float) -> None:
    """The norm that is told is the one before the cut; a shorter gradient is left alone."""
    model, free = small_model(tying=Tying.ALL), small_model(tying=Tying.ALL)
    free.load_state_dict(model.state_dict())
    batch, before = batch_of(sentences(), sentences()), weights(model)
    unclipped, clipped = gradient_step(free, [batch]), gradient_step(model, [batch], clip)
    assert clipped.gradient_norm == unclipped.gradient_norm > 0.1
    moved, whole = weights(model) - before, weights(free) - before
    assert moved.norm().item() == pytest.approx(min(clip, unclipped.gradient_norm), rel=1e-4)
    assert torch.nn.functional.cosine_similarity(moved, whole, dim=0) > 1 - 1e-9


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    """Neither the weights nor what the optimiser remembers; the next sound batch trains as if nothing had been."""
    model = small_model(torch.float32)
    optimizer = AdamW().build(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    batch = batch_of(sentences(), sentences())
    train_step(model, [batch], optimizer, 1.0, 0.1)
    before = weights(model)
    remembered = [state["exp_avg"].clone() for state in optimizer.state.values()]

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("nan")

    hook = model.encoder.layers[0].attention.output.weight.register_hook(poison)
    result = train_step(model, [batch, batch], optimizer, 1.0, 0.1)
    hook.remove()
    assert not result.finite and math.isnan(result.gradient_norm)
    assert torch.equal(weights(model), before)
    assert all(torch.equal(a, s["exp_avg"]) for a, s in zip(remembered, optimizer.state.values(), strict=True))
    assert train_step(model, [batch], optimizer, 1.0, 0.1).finite
    assert not torch.equal(weights(model), before)


def test_an_infinite_loss_changes_nothing() -> None:
    model = small_model(torch.float32)
    with torch.no_grad():
        model.decoder.layers[-1].feedforward_residual.norm.gain[0] = float("inf")
    before = weights(model)
    assert not gradient_step(model, [batch_of(sentences(), sentences())]).finite
    assert torch.equal(weights(model), before)


def test_it_trains_with_dropout_whatever_mode_the_model_was_in() -> None:
    model = small_model(dropout=0.5).eval()
    batch = batch_of(sentences(), sentences())
    losses = {round(gradient_step(model, [batch], 1e-9).loss, 6) for _ in range(3)}
    assert model.training and len(losses) == 3


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("order", "tying"), [(NormOrder.POST, Tying.ALL), (NormOrder.PRE, Tying.OUTPUT)])
def test_it_learns_to_copy(order: NormOrder, tying: Tying) -> None:
    """More than 99 % of the tokens of sentences never seen, after 400 updates: they are all different."""
    torch.set_num_threads(1)
    sizes = {"d_model": 64, "heads": 4, "d_k": 16, "d_ff": 128, "encoder_layers": 1, "decoder_layers": 2}
    model = Seq2Seq(Architecture(**sizes, dropout=0.0, norm_order=order, tying=tying), VOCABULARY, VOCABULARY)
    optimizer, schedule = AdamW().build(model), Cosine(rate=5e-3, warmup=30)

    def copies(count: int) -> Batch:
        lines = sentences(tuple(torch.randint(2, 8, (count,)).tolist()))
        return batch_of(lines, lines)

    results = []
    for step in range(1, 401):
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, 400, 64)
        results.append(train_step(model, [copies(40)], optimizer, 1.0, 0.0))
    assert results[-1].nll < 0.05 < results[0].nll
    model.eval()
    held_out = copies(300)
    with torch.no_grad():
        sums = model.loss(held_out.source, held_out.target, held_out.labels)
    assert sums.correct.item() / sums.tokens > 0.99
