"""Unexplained: two models have the same numbers and get the same inputs, and return others, though no scale differs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved
from surd.audit.matching import Pair
from surd.audit.scales import distinct
from surd.audit.thresholds import Threshold
from surd.audit.weights import Weights
from surd.measure.calling.inputs import tensors
from surd.measure.tensors import rms

ONE_VECTOR = 0.05
"""Of a difference, what may differ from place to place where one vector was added at all of them: rounding."""
LIKE = 0.99
"""Cosine of a weight with the vector by which logits differ."""


@dataclass(frozen=True, kw_only=True)
class Apart:
    """The first output of one shape that both return, where its numbers are finite."""

    mine: Tensor
    theirs: Tensor
    share: float
    """The difference, of its size; what no softmax sees is no difference of logits."""


def apart(mine: Evidence, theirs: Evidence) -> Apart | None:
    """None where nothing can be compared."""
    try:
        outputs = [[x for x in side.outputs if x.is_floating_point()] for side in (mine, theirs)]
        logits = mine.trace.head is not None and theirs.trace.head is not None
    except Unobserved:
        return None
    for one, other in zip(*outputs, strict=False):
        if one.shape == other.shape and one.dim():
            return _apart(one, other, logits)
    return None


def _apart(one: Tensor, other: Tensor, logits: bool) -> Apart:
    finite = one.isfinite() & other.isfinite()
    one, other = (torch.where(finite, x, 0).float() for x in (one, other))
    if logits:
        one, other = (x - x.mean(-1, keepdim=True) for x in (one, other))
    return Apart(mine=one, theirs=other, share=_share(one, other))


def _share(one: Tensor, other: Tensor) -> float:
    return rms(one - other) / max(rms(other), 1e-30)


def unexplained(
    mine: Evidence, theirs: Evidence, found: Apart, weights: Sequence[Pair], healthy: Threshold, by: str
) -> Iterator[Finding]:
    """For two models of the same numbers, between which no constant and no size was found to differ."""
    if healthy.holds(found.share) or not _same_numbers(mine.weights, theirs.weights, weights):
        return
    if healthy.holds(_where_masks_agree(mine, found)):
        return
    head = mine.trace.head
    vector = _vector(found) if head is not None else None
    if head is not None and vector is not None:
        yield _of_bias(mine, theirs, found, vector, head.site.name, by)
        return
    yield Finding(
        severity=Severity.WARNING,
        site=head.site.name if head is not None else "the model",
        quantity="difference of the outputs, of their size",
        measured=found.share,
        expected=0.0,
        high=healthy.high,
        source=by,
        message=f"weights and inputs are the same, and the outputs differ by {found.share:.3g} of their size, though "
        "every scale that was read agrees: something that is no scale is computed otherwise",
        mend="compare what the layers return one by one, from the first: an activation, the places of positions, "
        "which keys are hidden, the order of heads or of two norms, dropout that stays on",
        rule="logit-scale" if head is not None else "residual-growth",
        sites=(head.site.name if head is not None else "the model",),
    )


def _of_bias(mine: Evidence, theirs: Evidence, found: Apart, vector: Tensor, site: str, by: str) -> Finding:
    named = next((name for side in (theirs, mine) for name in _like(side.weights, vector)), "")
    name, sign = (named[1:], named[0]) if named else ("", "")
    told = {"-": f"{name} is added there and not here", "+": f"{name} is added here and not there", "": ""}[sign]
    return Finding(
        severity=Severity.FAULT,
        site=name or site,
        quantity="difference of the logits, of their size",
        measured=found.share,
        expected=0.0,
        source=by,
        message=f"the logits differ from those of {by} by one vector, the same at every position, of "
        f"{found.share:.3g} of their size{': ' if told else ''}{told}",
        mend=f"add it as {by} does: once, in the head or behind it",
        rule="head-bias",
        sites=(name or site,),
    )


def _vector(found: Apart) -> Tensor | None:
    """What is added at every position, where the difference is nothing else."""
    difference = (found.mine - found.theirs).flatten(0, -2)
    whole = difference.mean(0)
    return whole if len(difference) > 1 and rms(difference - whole) <= ONE_VECTOR * rms(difference) else None


def _like(weights: Weights, vector: Tensor) -> Iterator[str]:
    """Weights that are that vector, or its negative, each behind its sign."""
    for name in weights.names():
        if weights.shape(name) == vector.shape:
            one = weights.tensor(name).detach().float()
            near = float(torch.cosine_similarity(one - one.mean(), vector.to(one.device), dim=0))
            if abs(near) > LIKE:
                yield f"{'+' if near > 0 else '-'}{name}"


def _where_masks_agree(mine: Evidence, found: Apart) -> float:
    """The difference where a mask of the inputs calls positions real, be it by ones or by zeros."""
    shares = [found.share]
    for x in tensors(mine.inputs):
        if x.dim() == 2 and x.shape == found.mine.shape[:2] and x.dim() < found.mine.dim():
            here = x != 0
            if bool(((x == 0) | (x == 1)).all()) and bool(here.any()) and not bool(here.all()):
                shares += [_share(found.mine[one], found.theirs[one]) for one in (here, ~here)]
    return min(shares)


def _same_numbers(mine: Weights, theirs: Weights, pairs: Sequence[Pair]) -> bool:
    """Whether all of the first one's weights are the other's, bit for bit but for the type; the other may have more."""
    weights = [(one.site, other.site) for one, other in pairs if one.size]
    if not weights or not all(_equal(mine, theirs, *pair) for pair in weights):
        return False
    left, over = (
        [name for name in distinct(side) if side.dtype(name).is_floating_point and name not in known]
        for side, known in ((mine, {one for one, _ in weights}), (theirs, {other for _, other in weights}))
    )
    left = [name for name in left if mine.shape(name).numel() > 1]
    # Matrices may be packed in one of the two: then they are the same numbers, in another order.
    return not left or _moments(mine, left) == _moments(theirs, [x for x in over if theirs.shape(x).numel() > 1])


def _equal(mine: Weights, theirs: Weights, first: str, second: str) -> bool:
    """Up to rounding in the type that holds less."""
    one, other = mine.tensor(first).detach(), theirs.tensor(second).detach()
    if one.shape != other.shape:
        one = one.mT if one.dim() == 2 else one
    if one.shape != other.shape:
        return False
    coarse = max(torch.finfo(x.dtype).eps for x in (one, other))
    return torch.allclose(one.float(), other.float().to(one.device), rtol=coarse, atol=1e-7 if coarse < 1e-6 else 1e-5)


def _moments(weights: Weights, names: Sequence[str]) -> tuple[str, ...]:
    sums = torch.zeros(4, dtype=torch.float64)
    for name in names:
        for block in weights.blocks(name):
            x = block.detach().cpu().double()
            sums += torch.stack(
                [torch.tensor(x.numel(), dtype=torch.float64), x.sum(), x.square().sum(), x.abs().sum()]
            )
    return tuple(f"{float(one):.5g}" for one in sums)
