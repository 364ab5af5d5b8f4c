"""A norm's epsilon is not the one declared, stands outside the root, vanishes in its type or outweighs the variance."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import sqrt
from typing import Any

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.listeners.norms import Norm
from surd.measure.sites import Role

NAME = "norm-epsilon"
BA = "Ba et al. 2016 (arXiv 1607.06450), equation 3: √ of the population variance, epsilon under the root"
ZHANG = "Zhang & Sennrich 2019 (arXiv 1910.07467), equation 4: √ of the mean square, epsilon under the root"
HALF = "IEEE 754 binary16: the smallest number above 0 is 6e-8 (pytorch/pytorch#41527)"
SAME = 1e-3
"""Relative difference of two constants that are one, rounded."""
FIRST = 1e30
GRAVE = 0.1
"""Of the size of what a norm returns: beyond it the norm does not do what it is for."""
SMALLEST = 2.0**-25
"""What float16 rounds to 0: half of its smallest number."""
FELT = 1e-3
"""Of that size too: below it nobody can tell two constants apart."""


def look(evidence: Evidence) -> Iterator[Finding]:
    norms = [norm for norm in evidence.norms if norm.unit]
    if not norms:
        raise Unobserved("no norm was seen that makes rows of rms 1")
    yield from _declared(evidence, norms)
    yield from as_one((_vanished(norm) for norm in norms if not norm.safe), grave=lambda one: 0.0)
    halves = [norm for norm in norms if norm.safe and 0 < norm.epsilon < SMALLEST and evidence.dtype is torch.float16]
    yield from as_one(map(_wide, halves), grave=lambda one: 0.0)
    outside = [norm for norm in norms if norm.outside and norm.epsilon and not norm.floor]
    yield from as_one(map(_outside, outside), grave=_distance)
    yield from as_one((_unbiased(norm) for norm in norms if norm.unbiased), grave=_distance)
    large = (norm for norm in norms if norm.variance and not threshold(NAME, "share").holds(_share(norm)))
    yield from as_one(map(_large, large), grave=_loss)


def _share(norm: Norm) -> float:
    return norm.epsilon / norm.variance if not norm.outside else norm.epsilon / sqrt(norm.variance)


def _distance(finding: Finding) -> float:
    return abs(float(finding.measured) - float(finding.expected))


def _loss(finding: Finding) -> float:
    """What fails comes first."""
    return float(finding.measured) + (FIRST if finding.severity.fails else 0.0)


def _under(norm: Norm, epsilon: float) -> float:
    """rms of what a norm returns: √(v / (v + ε))."""
    return sqrt(norm.variance / (norm.variance + epsilon)) if norm.variance else 0.0


def _declared(evidence: Evidence, norms: Sequence[Norm]) -> Iterator[Finding]:
    """Beside the configuration; where it says nothing, norms of one stack and kind beside each other."""
    told = [norm for norm in norms if norm.epsilon and not norm.floor]
    stated = evidence.declared.epsilon
    if stated is not None:
        other = [norm for norm in told if not _alike(norm.epsilon, stated.value)]
        # Where no norm has the number, it is not the norms' own: some configurations bear fields that nobody reads.
        yield from as_one((_differs(norm, stated.value, stated.by) for norm in other), grave=_distance)
        return
    usual = Counter((norm.centred, norm.epsilon) for norm in told)
    groups: dict[tuple[str, bool, int], list[Norm]] = {}
    for norm in told:
        groups.setdefault((_stack(norm.where.path), norm.centred, norm.width), []).append(norm)
    for (stack, _, _), group in groups.items():
        values = {norm.epsilon for norm in group}
        if len(values) > 1 and stack:
            most = max(values, key=lambda value: (sum(usual[centred, value] for centred in (True, False)), -value))
            odd = [norm for norm in group if not _alike(norm.epsilon, most)]
            yield from as_one((_uneven(norm, most, len(values)) for norm in odd), grave=lambda one: 0.0)


def _stack(path: str) -> str:
    """Up to the number of the first layer: norms of one stack of blocks are made alike."""
    parts = path.split(".")
    before = [*takewhile(lambda part: not part.isdigit(), parts)]
    return ".".join(before) if len(before) < len(parts) else ""


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= SAME * other


def _at(norm: Norm, **known: Any) -> Finding:
    """A finding of one norm."""
    return Finding(site=f"{norm.where.path}:{Role.NORM}", file=norm.where.file, line=norm.where.line, **known)


def _differs(norm: Norm, declared: float, by: str) -> Finding:
    is_, ought = _under(norm, norm.epsilon), _under(norm, declared)
    return _at(
        norm,
        severity=_of_another(is_ / ought if ought else 1.0),
        quantity="epsilon beside the variance",
        measured=norm.epsilon,
        expected=declared,
        source=by,
        message=f"the norm adds {norm.epsilon:g} to a variance of {norm.variance:.3g}, {norm.epsilon / declared:.3g} "
        f"times the {declared:g} of {by}: it returns rows of rms {is_:.4g} instead of {ought:.4g}",
        mend=f"hand the declared one to this norm: eps={declared:g}",
    )


def _uneven(norm: Norm, usual: float, count: int) -> Finding:
    is_, ought = _under(norm, norm.epsilon), _under(norm, usual)
    return _at(
        norm,
        severity=Severity.NOTE if abs(is_ - ought) <= FELT * ought else Severity.WARNING,
        quantity="different epsilons of norms of one kind in one stack",
        measured=count,
        expected=1,
        source="one model, one epsilon: NVIDIA-NeMo/Megatron-Bridge#5712",
        message=f"this norm adds {norm.epsilon:g} to its variance, others of its kind and stack {usual:g}: one of them "
        f"has a default where the other has the model's own; rows come out with rms {is_:.4g} instead of {ought:.4g}",
        mend=f"hand one constant to all of them: eps={usual:g}",
    )


def _vanished(norm: Norm) -> Finding:
    name = str(norm.dtype).removeprefix("torch.")
    wide = norm.dtype in (torch.float32, torch.float64, torch.bfloat16)
    what = f"an epsilon of {norm.epsilon:g} is 0 in {name}" if norm.epsilon else "nothing is added to the variance"
    return _at(
        norm,
        severity=Severity.NOTE if wide and not norm.epsilon else Severity.FAULT,
        quantity="epsilon in the type of the variance",
        measured=0.0,
        expected=norm.epsilon or float(torch.finfo(norm.dtype).tiny),
        low=float(torch.finfo(torch.float16).smallest_normal) if norm.dtype is torch.float16 else None,
        source=HALF,
        message=f"{what}: a row of zeros, as padding has, becomes 0/0, which is NaN",
        mend="compute the norm in float32, or take eps ≥ 1e-6",
    )


def _wide(norm: Norm) -> Finding:
    """This kernel adds it in float32, others did not: without NaN here, it is a note."""
    return _at(
        norm,
        severity=Severity.NOTE,
        quantity="epsilon in the type of the variance",
        measured=0.0,
        expected=norm.epsilon,
        low=float(torch.finfo(torch.float16).smallest_normal),
        source=HALF,
        message=f"an epsilon of {norm.epsilon:g} is 0 in float16, the type of the model: here the norm adds it in "
        "float32, and a row of zeros stays finite; a kernel that adds it in float16 makes NaN of it",
        mend="take eps ≥ 1e-6 where the model is to run in float16",
    )


def _outside(norm: Norm) -> Finding:
    root = sqrt(norm.variance)
    is_, ought = root / (root + norm.epsilon), _under(norm, norm.epsilon)
    return _at(
        norm,
        severity=_severity(is_ / ought if ought else 1.0, Severity.NOTE),
        quantity="rms of what the norm returns, epsilon beside the root",
        measured=is_,
        expected=ought,
        source=BA if norm.centred else ZHANG,
        message=f"{norm.epsilon:g} is added to the root, x / (√v + ε), and not to the variance, x / √(v + ε): rows of "
        f"rms {root:.3g} come out with {is_:.4g} instead of {ought:.4g}",
        mend="put epsilon under the root: x * torch.rsqrt(variance + eps)",
    )


def _unbiased(norm: Norm) -> Finding:
    is_ = sqrt((norm.width - 1) / norm.width)
    return _at(
        norm,
        severity=_severity(is_, Severity.NOTE),
        quantity="rms of what the norm returns, √((d - 1) / d)",
        measured=norm.correction**-0.5,
        expected=1.0,
        low=threshold(NAME, "size").low,
        high=threshold(NAME, "size").high,
        source=BA if norm.centred else ZHANG,
        message=f"the sum of squares is divided by d - 1 = {norm.width - 1}, not by d: rows come out with rms "
        f"{is_:.4g} instead of 1",
        mend="take the population variance: x.var(-1, correction=0), or x.std(-1, correction=0)",
    )


def _severity(ratio: float, least: Severity) -> Severity:
    """By the ratio of what a norm returns to what it ought to."""
    if threshold(NAME, "size").holds(ratio):
        return least
    return Severity.FAULT if abs(ratio - 1) > GRAVE else Severity.WARNING


def _of_another(ratio: float) -> Severity:
    """Of a constant that is not the declared one: that the numbers differ is a note, that rows do is more."""
    return _severity(ratio, Severity.NOTE if abs(ratio - 1) <= FELT else Severity.WARNING)


def _large(norm: Norm) -> Finding:
    """Gains make up for some of it. Of published constants a variance that is small is the cause: that is a note."""
    healthy = threshold(NAME, "share")
    lost = not threshold(NAME, "usual").holds(norm.epsilon) and not threshold(NAME, "left").holds(norm.size)
    return _at(
        norm,
        severity=Severity.WARNING if lost else Severity.NOTE,
        quantity="epsilon over the median variance of rows",
        measured=_share(norm),
        expected=0.0,
        high=healthy.high,
        source=healthy.source,
        message=f"epsilon {norm.epsilon:g} is {_share(norm):.3g} of the variance of rows, {norm.variance:.3g}: the "
        f"norm returns rows of rms {norm.size:.3g}, not 1",
        mend=f"an epsilon of at most {norm.variance / 100:.1g} here, or rows of a larger size",
    )


RULE = Rule(
    name=NAME,
    what="A norm's epsilon is not the one declared, stands outside the root, vanishes in its type or outweighs the "
    "variance.",
    why="x / √(v + ε) has rms √(v / (v + ε)): 0.995 at ε = v / 100, 0.707 at ε = v. So small rows feel which epsilon "
    "it is: at v = 1e-5 one of 1e-5 leaves 0.707, one of 1e-6 0.953. Beside the root, x / (√v + ε), it is another "
    "function; a variance over n - 1 shrinks rows by √((d - 1) / d), 0.992 at d = 64.",
    when="Where rows are small: first norms over tables of std 0.02, branches at the start, and weights that were "
    "trained with another constant. At v = 1 it does nothing. In float16 an epsilon below 6e-8 is none at all.",
    example="""
import torch
from torch import nn
from surd.audit.specimen import WIDTH, language_model


class HomeMade(nn.Module):
    def __init__(self, epsilon=1e-6):
        super().__init__()
        self.gain, self.bias, self.epsilon = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH)), epsilon

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.gain * centred / (x.std(-1, keepdim=True) + self.epsilon) + self.bias


model = language_model()
for block in model.blocks:
    block.attention_norm, block.feedforward_norm = HomeMade(), HomeMade()
""",
    cure="""
import torch
from torch import nn
from surd.audit.specimen import WIDTH, language_model


class HomeMade(nn.Module):
    def __init__(self, epsilon=1e-6):
        super().__init__()
        self.gain, self.bias, self.epsilon = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH)), epsilon

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.gain * centred * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + self.epsilon) + self.bias


model = language_model()
for block in model.blocks:
    block.attention_norm, block.feedforward_norm = HomeMade(), HomeMade()
""",
    sources=(
        "Ba et al. 2016 (arXiv 1607.06450), equation 3",
        "Zhang & Sennrich 2019 (arXiv 1910.07467), equation 4",
        "harvardnlp/annotated-transformer#119: n - 1, and epsilon beside the root",
        "allenai/OLMo#281: x / (rms + ε) against x / √(ms + ε)",
        "Lightning-AI/lit-llama#339: 1e-5 where the checkpoint has 1e-6",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
