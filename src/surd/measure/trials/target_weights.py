"""Target weights: how much each position counts in a loss, told from the loss's gradient at the model's output alone.

A cross-entropy w · Σ_v y_v · (−ln p_v) has the gradient w · (M p − y) at the logits, where p is their softmax and y a
target of mass M = Σ y. So the gradient is a line in p with slope w · M, but for the entry of the target itself, and
sums to 0. At log-probabilities that a model returns, the gradient is −w · y; at probabilities, −w · y / p.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.errors import SurdError, raised
from surd.measure.calling.inputs import Inputs, arguments, replaced, tensors
from surd.measure.calling.restore import preserved

FITS = 0.98
"""R² from which a gradient is that of a cross-entropy of these logits."""
BALANCED = 0.02
"""Sum over its absolute sum up to which a gradient is one at logits, which a softmax lets shift."""
NORMALISED = 1e-3
FLAT = 1e-6
"""Between the largest and the smallest logit, below which probabilities differ by rounding alone."""
AT_ONCE = 2**21
"""Numbers that are read together."""
OFF_LINE = 20.0
"""How many times the usual distance from the line is that of another class of targets."""
CLEAR = 0.5
"""Share of the variance of p that must be left for a line without them."""
FEWEST = 4
"""Classes from which a line can be told from a gradient."""


@dataclass(frozen=True, kw_only=True)
class TargetWeights:
    """Of one loss."""

    weights: Float[Tensor, " positions"]
    """w · M of each position, in the order of the logits: 0 where the loss ignores it."""
    pointed: Float[Tensor, " positions"]
    """w times what the target itself has of y beyond any other class: 0 where only smoothing counts."""
    shape: tuple[int, ...]
    """Of the logits, without their classes."""
    value: float
    """The loss itself."""
    of_logits: bool = True
    """It takes a softmax of what the model returns, rather than their logarithm, or them as they are."""

    @property
    def total(self) -> float:
        """1 for a mean over the positions that count, as many as they are for a sum."""
        return float(self.weights.sum())

    @property
    def counted(self) -> int:
        """How many positions count at all."""
        return int((self.weights.abs() > 1e-9 * self.weights.abs().max().clamp(min=1e-30)).sum())


def target_weights(output: Any, loss: Callable[[Any], Tensor]) -> TargetWeights | None:
    """Of a loss of what a model returned; None where it is no cross-entropy of any of its tensors."""
    leaves: list[Tensor] = []

    def leaf(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        leaves.append(x.detach().double().requires_grad_() if x.dim() > 1 else x.detach())
        return leaves[-1]

    with torch.enable_grad():
        value = _called(loss, replaced(output, leaf))
        wanted = [x for x in leaves if x.requires_grad]
        if not value.requires_grad or not wanted:
            return None
        gradients = torch.autograd.grad(value.sum(), wanted, allow_unused=True)
    for logits, gradient in zip(wanted, gradients, strict=True):
        if gradient is not None and bool((gradient != 0).any()) and bool(gradient.isfinite().all()):
            return _read(logits.detach().flatten(0, -2), gradient.flatten(0, -2), tuple(logits.shape[:-1]), value)
    return None


def _called(loss: Callable[[Any], Tensor], output: Any) -> Tensor:
    try:
        value = loss(output)
    except Exception as error:
        raise SurdError(f"the loss raised {raised(error)}") from error
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise SurdError(f"the loss returned a {type(value).__name__}; expected a tensor with one number")
    return value


def _read(
    output: Float[Tensor, "positions classes"],
    gradient: Float[Tensor, "positions classes"],
    shape: tuple[int, ...],
    value: Tensor,
) -> TargetWeights | None:
    if output.shape[-1] < FEWEST:
        return None
    balanced = float(gradient.sum(-1).abs().sum()) <= BALANCED * float(gradient.abs().sum())
    if balanced:
        found = _at_logits(output, gradient)
    elif float(output.logsumexp(-1).abs().max()) < NORMALISED:
        found = _at_targets(-gradient)
    elif float(output.min()) >= 0 and float((output.sum(-1) - 1).abs().max()) < NORMALISED:
        found = _at_targets(-gradient * output)
    else:
        found = None
    if found is None or not bool(found[0].isfinite().all()):
        return None
    total = float(value.detach().sum())
    return TargetWeights(weights=found[0], pointed=found[1], shape=shape, value=total, of_logits=balanced)


def _at_logits(
    logits: Float[Tensor, "positions classes"], gradient: Float[Tensor, "positions classes"]
) -> tuple[Float[Tensor, " positions"], Float[Tensor, " positions"]] | None:
    if float((logits.amax(-1) - logits.amin(-1)).max()) < FLAT:
        raise SurdError("every class has the same probability, as behind a head of zeros: no line in it can be told")
    rows = max(1, AT_ONCE // logits.shape[-1])
    parts = [_line(*part) for part in zip(logits.split(rows), gradient.split(rows), strict=True)]
    left, energy = (sum(float(part[number]) for part in parts) for number in (2, 3))
    if left > (1 - FITS) * max(energy, 1e-30) and left > 1e-24:
        return None
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _line(
    logits: Float[Tensor, "positions classes"], gradient: Float[Tensor, "positions classes"]
) -> tuple[Float[Tensor, " positions"], Float[Tensor, " positions"], Tensor, Tensor]:
    """Slope in p, how far the target lies below the line, what the line leaves unexplained, and what there was."""
    p, gradient = logits.double().softmax(-1), gradient.double()
    # The target's own entry lies far below the line: it is the lowest of gradient − p · (what the others share).
    target = (gradient / p.clamp(min=1e-30)).argmin(-1, keepdim=True)
    others = torch.ones_like(p).scatter(-1, target, 0.0)
    count = others.sum(-1, keepdim=True)
    mean_p, mean_g = (p * others).sum(-1, keepdim=True) / count, (gradient * others).sum(-1, keepdim=True) / count
    apart_p, apart_g = (p - mean_p) * others, (gradient - mean_g) * others
    slope = (apart_p * apart_g).sum(-1) / apart_p.square().sum(-1).clamp(min=1e-30)
    rest = apart_g - slope[:, None] * apart_p
    left = rest.square().sum()
    # Once more without the few classes that no target may have, such as padding, which lie off the line of all others;
    # unless these few are all that has probability.
    near = others * (rest.abs() <= OFF_LINE * rest.abs().median(-1, keepdim=True).values)
    count = near.sum(-1, keepdim=True).clamp(min=1)
    near_p, near_g = (p * near).sum(-1, keepdim=True) / count, (gradient * near).sum(-1, keepdim=True) / count
    fit_p, fit_g = (p - near_p) * near, (gradient - near_g) * near
    clear = fit_p.square().sum(-1) > CLEAR * apart_p.square().sum(-1)
    slope = torch.where(clear, (fit_p * fit_g).sum(-1) / fit_p.square().sum(-1).clamp(min=1e-30), slope)
    mean_p, mean_g = (torch.where(clear[:, None], *pair) for pair in ((near_p, mean_p), (near_g, mean_g)))
    intercept = mean_g[:, 0] - slope * mean_p[:, 0]
    line = slope[:, None] * p.gather(-1, target) + intercept[:, None]
    return slope, (line - gradient.gather(-1, target))[:, 0], left, apart_g.square().sum()


def _at_targets(
    targets: Float[Tensor, "positions classes"],
) -> tuple[Float[Tensor, " positions"], Float[Tensor, " positions"]] | None:
    """From w · y itself, which no entry of a distribution makes negative."""
    if float(targets.min()) < -1e-6 * float(targets.max()):
        return None
    two = targets.topk(2, -1).values
    return targets.sum(-1), two[:, 0] - two[:, 1]


def weights_of_loss(model: nn.Module, inputs: Inputs, loss: Callable[[Any], Tensor]) -> TargetWeights | None:
    """Of a loss of what the model returns for these inputs, in eval mode."""
    args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
    with preserved(model):
        with torch.no_grad():
            found = target_weights(model(*args, **kwargs), loss)
        return _of_graph(model(*args, **kwargs), loss) if found is None else found


def _of_graph(output: Any, loss: Callable[[Any], Tensor]) -> TargetWeights | None:
    """Of a loss that the forward has computed already, and returns beside its logits."""
    value = _called(loss, output)
    logits = [x for x in tensors(output) if x.is_floating_point() and x.dim() > 1 and x.requires_grad]
    if not value.requires_grad or value.numel() != 1 or not logits:
        return None
    gradients = torch.autograd.grad(value.sum(), logits, allow_unused=True)
    for x, gradient in zip(logits, gradients, strict=True):
        if gradient is not None and bool((gradient != 0).any()) and bool(gradient.isfinite().all()):
            return _read(x.detach().flatten(0, -2), gradient.flatten(0, -2), tuple(x.shape[:-1]), value)
    return None


def weights_of_labels(model: nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> TargetWeights | None:
    """Of the loss that a model itself computes from `labels`, at the logits that it returns beside it."""
    kwargs = replaced(dict(inputs), lambda x: x.clone())
    with preserved(model):
        output = model(**kwargs | {"labels": labels})
        loss, logits = getattr(output, "loss", None), getattr(output, "logits", None)
        if not isinstance(loss, Tensor) or not isinstance(logits, Tensor) or loss.numel() != 1:
            return None
        (gradient,) = torch.autograd.grad(loss, [logits], allow_unused=True)
    if gradient is None:
        return None
    return _read(logits.detach().flatten(0, -2), gradient.flatten(0, -2), tuple(logits.shape[:-1]), loss)
