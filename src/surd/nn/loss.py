"""Cross-entropy over a large vocabulary and what may be added to it, in chunks of its logits.

No (tokens × vocabulary) tensor ever exists.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.errors import SurdError
from surd.part import Part

CHUNK_NUMBERS = {"cpu": 2_500_000, "cuda": 64_000_000}
"""How many logits are held at once: about what a CPU's caches hold, and enough rows to fill a GPU."""
TINY, HUGE = 1e-30, 1e30
"""Between these a sum of exponentials is far from the ends of fp32, and its row needs no shift."""


@dataclass(frozen=True, kw_only=True)
class Augmented(Part, kind="augmented"):
    """γ τ · KL(ỹ ‖ ŷ) is added, with ỹ = softmax(E e / τ), e the label's row of E, and ŷ = softmax(logits / τ).

    Words whose embeddings are near the label's are taken for nearly right. With a large τ it makes the pre-softmax
    projection span the space of the embeddings, which is the case for tying them. ỹ passes no gradient.
    Source: Inan, Khosravi & Socher 2017 (arXiv 1611.01462), section 3.
    """

    gamma: float = 0.5
    """Weight γ; τ keeps the gradient at one size, since that of the divergence falls as 1/τ."""
    temperature: float = 20.0
    """τ: how flat both distributions are made."""

    def __post_init__(self):
        for name in ("gamma", "temperature"):
            if not (getattr(self, name) > 0 and isfinite(getattr(self, name))):
                raise SurdError(f"{name}: expected a number above 0, found {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is trained on besides the cross-entropy."""

    z: float = 0.0
    """Weight of (ln Z)², Z being the softmax's denominator: it keeps the logits from drifting (the z-loss).

    Source: Chowdhery et al. 2022 (arXiv 2204.02311), section 5.
    """
    augmented: Augmented | None = None
    """Takes words near the label for nearly right; none leaves it out."""


@dataclass(frozen=True)
class LossSums:
    """Sums over the real target tokens of a batch; divide by `tokens` for means."""

    loss: Tensor
    """Smoothed cross-entropy and further terms in nats, differentiable."""
    nll: Tensor
    """Unsmoothed cross-entropy in nats."""
    correct: Tensor
    """How often the label was the most probable token; counted only where no gradient is asked for, else 0."""
    tokens: int
    """How many target tokens were summed."""


def smoothed_cross_entropy(
    hidden: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocabulary d_model"],
    bias: Float[Tensor, " vocabulary"] | None,
    labels: Int[Tensor, " tokens"],
    smoothing: float,
    terms: Terms | None = None,
    embedding: Float[Tensor, "vocabulary d_model"] | None = None,
) -> LossSums:
    """Σ over tokens of -(1-ε) log p(label) - ε · mean over v of log p(v), with p = softmax(hidden Wᵀ + bias).

    Source: Szegedy et al. 2016 (arXiv 1512.00567), section 7; the convention of `torch.nn.functional.cross_entropy`.
    `terms` are added where training asks for them; the augmented one looks labels up in `embedding`.
    """
    terms = terms or Terms()
    loss, nll, correct = _ChunkedLoss.apply(
        hidden, weight, bias, labels, smoothing, terms, embedding, torch.is_grad_enabled()
    )
    return LossSums(loss=loss, nll=nll, correct=correct, tokens=labels.numel())


class _ChunkedLoss(torch.autograd.Function):
    """Works the gradient out beside the loss, chunk by chunk, while the chunk's probabilities are still at hand.

    With p = softmax(z), dL/dz = p - (1-ε) onehot(label) - ε/V. The last, constant term never touches a chunk: its
    share of the loss and of every gradient depends on the row sums of W and of the hidden states alone.
    """

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        terms: Terms,
        embedding: Tensor | None,
        learning: bool,
    ):
        vocabulary, dtype = weight.shape[0], hidden.dtype
        table = weight.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        # `needs_input_grad` only asks the inputs: it is true under no_grad as well, where nobody will call `backward`.
        backward = learning and any(ctx.needs_input_grad[:3])
        d_hidden = torch.empty_like(hidden) if backward else None
        d_weight = torch.zeros_like(weight) if backward else None
        d_bias = torch.zeros_like(bias) if backward and bias is not None else None
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        label_scores, normaliser, correct = [], [], labels.new_zeros(())
        divergence, rows = hidden.new_zeros((), dtype=wide), None if embedding is None else embedding.detach().to(dtype)
        size = min(labels.numel(), max(64, CHUNK_NUMBERS.get(hidden.device.type, CHUNK_NUMBERS["cpu"]) // vocabulary))
        # One buffer for all chunks: a fresh tensor of this size is page faults, ten times the price of its product.
        all_logits = hidden.new_empty(size, vocabulary)
        all_exps = all_logits if wide == dtype else hidden.new_empty(size, vocabulary, dtype=wide)
        for start in range(0, labels.numel(), size):
            h, y = hidden[start : start + size], labels[start : start + size, None]
            logits = all_logits[: len(h)]
            exps = logits if wide == dtype else all_exps[: len(h)]
            _product(h, table, offset, logits)
            score = logits.gather(1, y).to(wide)
            if not backward:
                correct += (logits.argmax(1, keepdim=True) == y).sum()
            nearness = None
            if terms.augmented and rows is not None:
                divergence, nearness = _augmented(terms.augmented, logits, rows[y[:, 0]] @ rows.T, divergence)
            total = exps.copy_(logits).exp_().sum(1, keepdim=True)
            shift = torch.zeros_like(total)
            if not bool(((total > TINY) & (total < HUGE)).all()):
                _product(h, table, offset, logits)
                shift = logits.amax(1, keepdim=True).to(wide)
                total = exps.copy_(logits).sub_(shift).exp_().sum(1, keepdim=True)
            normaliser.append(total.log() + shift)
            label_scores.append(score)
            if d_hidden is not None and d_weight is not None:
                if terms.z:
                    exps.mul_(1 + 2 * terms.z * normaliser[-1])
                if nearness is not None:
                    exps.addcmul_(nearness, total)
                # The chunk holds total · dL/dz: its rows are divided in the thin factors, never in the chunk.
                d_logits = exps.scatter_add_(1, y, total * (smoothing - 1.0)).to(dtype)
                torch.mm(d_logits, table, out=d_hidden[start : start + size])
                d_hidden[start : start + size] /= total
                _add_product(d_weight, d_logits.T, (h / total).to(dtype))
                if d_bias is not None:
                    _add_product(d_bias[:, None], d_logits.T, (1 / total).to(dtype))
        label_score, normaliser = torch.cat(label_scores), torch.cat(normaliser)
        mean_row = weight.mean(0)
        mean_score = hidden.to(weight.dtype) @ mean_row + (0.0 if bias is None else bias.mean())
        nll = (normaliser - label_score).sum()
        loss = (normaliser - (1 - smoothing) * label_score).sum() - smoothing * mean_score.sum()
        loss = loss + terms.z * normaliser.square().sum() + divergence
        if d_hidden is not None and d_weight is not None and smoothing:
            d_hidden -= (smoothing * mean_row).to(dtype)
            d_weight -= (smoothing / vocabulary) * hidden.sum(0, dtype=weight.dtype)
            if d_bias is not None:
                d_bias -= smoothing * labels.numel() / vocabulary
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    def backward(ctx, d_loss: Tensor, d_nll: Tensor, d_correct: Tensor):
        gradients = ctx.saved_tensors
        return *(None if g is None else g * d_loss.to(g.dtype) for g in gradients), None, None, None, None, None


def _augmented(part: Augmented, logits: Tensor, nearness: Tensor, so_far: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the term with that of some rows added, and its gradient by their logits."""
    wide = so_far.dtype
    aim = (nearness.to(wide) / part.temperature).log_softmax(1)
    found = (logits.to(wide) / part.temperature).log_softmax(1)
    wanted = aim.exp()
    divergence = part.gamma * part.temperature * (wanted * (aim - found)).sum()
    return so_far + divergence, part.gamma * (found.exp() - wanted)


def _product(h: Tensor, table: Tensor, offset: Tensor | None, out: Tensor) -> None:
    """Logits of some rows, `h tableᵀ + offset`."""
    torch.mm(h, table.T, out=out) if offset is None else torch.addmm(offset, h, table.T, out=out)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left @ right`, summed in the dtype of `total`, which may be wider than that of the factors."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
