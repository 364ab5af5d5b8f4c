"""The sizes at the sites of a model as plain hooks see them, to be held against what its parts predict."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from parity.small import pairs, windows
from torch import Tensor, nn

from surd.measure.sites import Role
from surd.models.language import Language
from surd.models.seq2seq import Seq2Seq
from surd.nn.block import Residual
from surd.nn.embedding import Embedding
from surd.nn.linear import Linear
from surd.nn.multihead import Fit
from surd.nn.norm import NormLayer
from surd.nn.norm import NormOrder as Order
from surd.nn.score import dot_scores, soft_cap

LENGTHS = (12, 13)
"""Tokens in each sentence of source and target, without BOS or EOS."""


@dataclass(frozen=True)
class Size:
    """rms of the numbers at a site, and of the gradient of the summed cross-entropy there."""

    forward: float
    backward: float | None


def observed(model: Seq2Seq | Language, sentences: int, seed: int) -> dict[str, Size]:
    """Random sentences with random labels through a model, all at once."""
    torch.manual_seed(seed)
    lines = [
        [torch.randint(4, vocabulary, (length,)).tolist() for _ in range(sentences)]
        for vocabulary, length in zip(model.vocabularies, LENGTHS[-len(model.vocabularies) :], strict=True)
    ]
    *given, labels = pairs(*lines) if isinstance(model, Seq2Seq) else windows(*lines)
    kept: dict[str, tuple[Tensor, Callable[[Tensor], float]]] = {}
    names = {module: name for name, module in model.named_modules()}

    def keep(module: nn.Module, role: Role, x: Tensor, size: Callable[[Tensor], float] = rms) -> None:
        if x.requires_grad:
            x.retain_grad()
        kept[f"{names[module]}:{role}"] = x, size

    def hook(module: nn.Module, given: tuple, out: Tensor) -> None:
        match module:
            case Embedding():
                keep(module, Role.EMBED, out)
            case Residual() if module.order is Order.PRE:
                keep(module, Role.STREAM, out)
            case Linear() if names[module].endswith(("output", "feedforward.outer")):
                keep(module, Role.BRANCH, out)
            case Fit():
                for role, x in zip((Role.QUERY, Role.KEY, Role.VALUE), given, strict=False):
                    keep(module, role, x)
                keep(module, Role.MIX, out)
                if module.score is None:
                    keep(module, Role.SCORE, _scores(module, *given), _within)
            case _ if isinstance(module, NormLayer):
                keep(module, Role.NORM, out)

    handles = [module.register_forward_hook(hook) for module in model.modules()]
    hidden = model(*given)
    logits = model.logits(hidden)
    keep(model.projection, Role.HIDDEN, hidden)
    keep(model.projection, Role.LOGITS, logits)
    F.cross_entropy(logits, torch.randint(4, model.vocabularies[-1], labels.shape), reduction="sum").backward()
    for handle in handles:
        handle.remove()
    return {
        name: Size(size(x), None if x.grad_fn is None or not x.retains_grad else rms(x.grad))
        for name, (x, size) in kept.items()
    }


def rms(x: Tensor) -> float:
    return x.detach().double().square().mean().sqrt().item()


def _scores(fit: Fit, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None) -> Tensor:
    """NaN where a key is hidden."""
    scores = dot_scores(query, key.repeat_interleave(fit.group, 1), fit.constant).detach()
    scores = scores if fit.cap is None else soft_cap(scores, fit.cap)
    return scores if added is None else scores.masked_fill(added < 0, torch.nan)


def _within(scores: Tensor) -> float:
    """Standard deviation of what is seen, around the mean of its row."""
    return rms((scores - scores.nanmean(-1, keepdim=True)).flatten()[~scores.isnan().flatten()])
