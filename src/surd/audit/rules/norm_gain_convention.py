"""A norm multiplies by another gain than it should: by w for 1 + w, by 2 + w, twice, never, or by a drawn one."""

from collections.abc import Iterator, Sequence
from math import sqrt

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.listeners.norms import Norm
from surd.measure.sites import Role

NAME = "norm-gain-convention"
GEMMA = "rms(out) = rms(w) or rms(1 + w): Zhang & Sennrich 2019 (arXiv 1910.07467); Gemma's code multiplies by 1 + w"
NEGATIVE = 0.05
"""Share of gains below zero from which a weight, trained as such, is no gain: trained ones are positive but for few."""
FEW = 1e-3
MOST = 1.5
"""Of an offset that somebody means."""
SPREAD = 0.2
"""Relative spread up to which gains began as one number: a few updates move them, and drawn ones lie around zero."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    norms = [norm for norm in evidence.norms if norm.unit]
    if not norms:
        raise Unobserved("no norm was seen that makes rows of rms 1")
    yield from as_one((_never(norm) for norm in norms if norm.idle), grave=lambda one: 0.0)
    yield from as_one((_twice(norm) for norm in norms if norm.times > 1), grave=lambda one: 0.0)
    judged = _unique(norm for norm in norms if norm.gain is not None and norm.weight and norm.times == 1)
    wrong = _of_trained(evidence, judged) if evidence.trained else [norm for norm in judged if _is_off(norm)]
    for offset in sorted({norm.offset for norm in wrong}, key=str):
        yield from _pooled([norm for norm in wrong if norm.offset == offset], evidence)


def _unique(norms: Iterator[Norm]) -> list[Norm]:
    """One of each parameter: norms that run more often are judged once."""
    return list({norm.weight: norm for norm in norms}.values())


def _is_off(norm: Norm) -> bool:
    """Whether a gain is no 1 at the start; a branch that ends in a gain of zero is to begin as nothing."""
    assert norm.gain is not None, "chosen so"
    spread = float(norm.gain.max() - norm.gain.min())
    constant = spread <= max(1e-6, SPREAD * abs(float(norm.gain.median())))
    if constant and norm.joins and abs(float(norm.gain[0])) < 1:
        return False  # branches that begin small, or as nothing, are a design
    if constant and norm.offset == 0 and float(norm.gain[0]) != 0:
        return False  # set by hand
    return not threshold(NAME, "middle").holds(float(norm.gain.median()))


def _of_trained(evidence: Evidence, norms: Sequence[Norm]) -> list[Norm]:
    """Trained gains are of all sizes, but of one sign: w around 0 is an offset from 1, and one around 1 is none.

    Nobody means 2 + w.
    """
    twice = [norm for norm in norms if norm.offset is not None and norm.offset > MOST]
    return twice + [norm for norm in _of_signs(evidence, norms) if norm not in twice]


def _of_signs(evidence: Evidence, norms: Sequence[Norm]) -> list[Norm]:
    stated = evidence.declared.gain_offset
    direct = [norm for norm in norms if norm.offset == 0 and _share_below(norm) > NEGATIVE and _middle(norm) < 0.5]
    if 2 * len(direct) > sum(norm.offset == 0 for norm in norms) or (stated is not None and stated.value):
        return direct
    raised = [norm for norm in norms if norm.offset is not None and norm.offset >= 1]
    whole = [norm for norm in raised if 0.7 < _middle(norm) - (norm.offset or 0) < 1.6 and _share_small(norm) <= FEW]
    return whole if 2 * len(whole) > len(raised) else []


def _share_below(norm: Norm) -> float:
    return 0.0 if norm.gain is None else float((norm.gain < 0).float().mean())


def _share_small(norm: Norm) -> float:
    """Of weights below zero, which an offset from 1 has."""
    return 0.0 if norm.gain is None else float((norm.gain - (norm.offset or 0) < 0).float().mean())


def _middle(norm: Norm) -> float:
    return 0.0 if norm.gain is None else float(norm.gain.median())


def _pooled(norms: Sequence[Norm], evidence: Evidence) -> Iterator[Finding]:
    """All gains together give the number: rms(out) over rms of the rows."""
    gains = torch.cat([norm.gain for norm in norms if norm.gain is not None])
    offset = norms[0].offset
    measured = float(gains.square().mean().sqrt())
    weights = gains - (offset or 0.0)
    drawn = float(gains.std()) > 0 if len(gains) > 1 else False
    around = float(weights.median())
    # Which of the two conventions makes gains around 1 of what is stored.
    add = min((0.0, 1.0), key=lambda one: abs(around + one - 1))
    expected = float((weights + add).square().mean().sqrt())
    first = norms[0]
    stated = evidence.declared.gain_offset
    if offset is None:
        reason, mend = "the gain is no weight plus a constant", "let the gain start at 1"
    elif offset == 0 and drawn and not evidence.trained:
        reason = f"gains lie around {around:.2g}: either they were drawn as matrices are, or they are offsets from 1"
        mend = "initialise the gains of norms to 1 and leave them out of the initialiser of matrices; if the weights "
        mend += "are offsets from 1, multiply by 1 + w"
    elif offset == 0:
        reason = f"w, around {around:.2g}, multiplies as it is stored where 1 + w is meant"
        mend = "multiply by 1 + w, or add 1 to the weights once when they are converted"
    else:
        reason = f"{offset:g} is added to weights around {around:.2g}, which hold the 1 already"
        mend = "take 1 away from the weights once, where they are converted, or multiply by w; begin at w = 0 for 1 + w"
    by = f", declared by {stated.by}" if stated is not None and stated.value else ""
    yield Finding(
        severity=Severity.WARNING if evidence.trained and not by else Severity.FAULT,
        site=_site(first),
        sites=tuple(map(_site, norms)),
        quantity="rms of a norm's output over that of its normalised rows",
        measured=measured,
        expected=expected,
        low=expected * threshold(NAME, "ratio").low,
        high=expected * threshold(NAME, "ratio").high,
        source=GEMMA,
        message=f"what {_count(norms)} returned is {measured:.3g} in size where {expected:.3g} is meant{by}: {reason}",
        mend=mend,
        file=first.where.file,
        line=first.where.line,
    )


def _count(norms: Sequence[Norm]) -> str:
    return "this norm" if len(norms) == 1 else f"{len(norms)} norms"


def _site(norm: Norm) -> str:
    return f"{norm.where.path}:{Role.NORM}"


def _never(norm: Norm) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=_site(norm),
        quantity="how often the gain multiplies",
        measured=0,
        expected=1,
        source=GEMMA,
        message=f"{norm.idle[0]} takes no part in the forward: the norm returns rows of rms {norm.size:.3g} whatever "
        "it is, and it cannot learn",
        mend="multiply by the gain behind the division, as w or as 1 + w",
        file=norm.where.file,
        line=norm.where.line,
    )


def _twice(norm: Norm) -> Finding:
    assert norm.gain is not None, "it multiplied"
    once = float(norm.gain.square().mean().sqrt())
    again = float(norm.gain.double().pow(norm.times).square().mean().sqrt())
    return Finding(
        severity=Severity.FAULT,
        site=_site(norm),
        quantity="how often the gain multiplies",
        measured=norm.times,
        expected=1,
        source=GEMMA,
        message=f"{norm.weight} multiplies {norm.times} times: rows come out with {again:.3g} times their size, once "
        f"would be {once:.3g}",
        mend="multiply by the gain once: in the kernel or behind it",
        file=norm.where.file,
        line=norm.where.line,
    )


RULE = Rule(
    name=NAME,
    what="A norm multiplies by another gain than it should: by w for 1 + w, by 2 + w, twice, never, or by a drawn one.",
    why="A norm makes rows of rms 1, so rms(out) = rms(gain), and the gain starts at 1. It is stored as w or, as in "
    "Gemma, as w = gain - 1. Read the other way, weights N(0.22, 0.3) give 0.37 instead of 1.26, and weights that "
    f"hold the 1 already 2.24. Drawn from U(±0.1) as matrices are, gains have rms 0.1/√3 = {0.1 / sqrt(3):.3f}.",
    when="After a change of kernel, converter or initialiser. Gains of zero where a branch ends (zero-init residual), "
    "and those that a condition makes (adaptive norms) are a design, and are not told.",
    example="""
import torch
from torch import nn
from surd.audit.specimen import WIDTH, language_model


class OffsetNorm(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        rows = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return rows * (1 + self.weight)


model = language_model()
for block in model.blocks:
    block.attention_norm, block.feedforward_norm = (OffsetNorm(torch.ones(WIDTH)) for _ in range(2))
""",
    cure="""
import torch
from torch import nn
from surd.audit.specimen import WIDTH, language_model


class OffsetNorm(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        rows = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return rows * (1 + self.weight)


model = language_model()
for block in model.blocks:
    block.attention_norm, block.feedforward_norm = (OffsetNorm(torch.zeros(WIDTH)) for _ in range(2))
""",
    sources=(
        "Zhang & Sennrich 2019 (arXiv 1910.07467), equation 4",
        "linkedin/Liger-Kernel#74: a kernel that multiplies by Gemma's offset",
        "utensils/mold#1078: 1 + w converted once too often",
        "Eole and OpenNMT-py draw every parameter from U(±0.1), the gains of norms among them",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
