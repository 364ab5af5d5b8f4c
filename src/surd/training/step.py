"""One optimiser step: the gradient of the mean loss over the real target tokens of its micro-batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from surd.data.windows import Material
from surd.models.model import Model
from surd.nn.loss import Terms


@dataclass(frozen=True)
class StepResult:
    """What one step saw; losses are means over its target tokens, in nats."""

    loss: float
    """Smoothed cross-entropy."""
    nll: float
    """Cross-entropy without smoothing."""
    target_tokens: int
    """Real target tokens, padding not counted."""
    source_tokens: int
    """Real source tokens, padding not counted; running text has none."""
    gradient_norm: float
    """Norm of the whole gradient before clipping."""
    finite: bool
    """False when loss or gradient was not a number; then no weight has changed."""


def train_step(
    model: Model,
    batches: Sequence[Material],
    optimizer: torch.optim.Optimizer,
    clip: float | None,
    smoothing: float,
    terms: Terms | None = None,
    failed: Callable[[], object] = lambda: None,
) -> StepResult:
    """Accumulates over `batches`, normalises by all their target tokens together, clips to norm `clip`, steps.

    A mean of the micro-batches' means would weigh tokens of short batches more; the sum over tokens is what one big
    batch would give. `failed` is called where loss or gradient is not a number, while the gradients are still there.
    """
    model.train()
    tokens = sum(batch.labels.numel() for batch in batches)
    loss_sum = nll_sum = 0.0
    for batch in batches:
        sums = model.loss(*batch.inputs, batch.labels, smoothing, terms)
        (sums.loss / tokens).backward()
        loss_sum += float(sums.loss.detach())
        nll_sum += float(sums.nll)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip else float("inf"), foreach=True)
    gradient_norm = float(norm)
    finite = torch.isfinite(torch.tensor([loss_sum, gradient_norm])).all().item()
    if finite:
        optimizer.step()
    else:
        failed()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(
        loss=loss_sum / tokens,
        nll=nll_sum / tokens,
        target_tokens=tokens,
        source_tokens=sum(batch.tokens for batch in batches) - tokens,
        gradient_norm=gradient_norm,
        finite=bool(finite),
    )
