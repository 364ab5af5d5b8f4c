"""The number that hides a key does not fit: too large for the type, infinite in a sum of masks, or not low enough."""

from collections.abc import Iterator
from math import isinf

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.listeners.masked import Overflow
from surd.measure.listeners.scored import Scored
from surd.measure.trace.naming import Where

NAME = "mask-fill"
MEND = (
    "hide with a boolean mask, or masked_fill with torch.finfo(scores.dtype).min / 2; combine masks by `or`, not by +"
)


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    mixing = evidence.mixing
    if mixing.refused is not None:
        yield _too_large(mixing.refused.where, mixing.refused.fill, mixing.refused.dtype, "and the forward stops there")
        return
    overflows, scores = _with_padding(evidence)
    if any(isinf(fill) for one in scores for fill in one.fills):
        beyond = [_too_large(one.where, one.number, one.dtype, "so it is infinite") for one in overflows if one.number]
        yield from as_one(beyond, grave=lambda finding: float(finding.measured))
    for harmless in (False, True):
        found = [_overflow(one) for one in overflows if one.harmless is harmless and one.number is None]
        yield from as_one(found, grave=lambda finding: float(finding.measured))
    named = _dtype(evidence)
    large = []
    for masking in mixing.maskings:
        written = torch.finfo(masking.dtype)
        constant = not isinf(masking.fill) and masking.fill > written.min / 2
        if named is not None and constant and abs(masking.fill) > torch.finfo(named).max:
            large.append(_too_large(masking.where, masking.fill, named, "which the configuration names"))
    yield from as_one(large, grave=lambda finding: float(finding.measured))
    close = [finding for one in mixing.scores for finding in _gap(one)]
    yield from as_one(close, grave=lambda finding: -float(finding.measured))


def _with_padding(evidence: Evidence) -> tuple[tuple[Overflow, ...], tuple[Scored, ...]]:
    """What became infinite in the batch as it is, and else with padding in it, and the scores of that forward."""
    mixing = evidence.mixing
    if not mixing.overflows:
        try:
            return evidence.padded.overflows, evidence.padded.scores
        except Unobserved:
            pass
    return mixing.overflows, mixing.scores


def _overflow(overflow: Overflow) -> Finding:
    return Finding(
        severity=Severity.NOTE if overflow.harmless else Severity.FAULT,
        site=f"{overflow.where.path}:score",
        quantity="finite numbers whose sum is infinite, in a mask or in masked scores",
        measured=overflow.count,
        expected=0,
        source=f"{overflow.dtype} ends at {torch.finfo(overflow.dtype).max:.4g}",
        message=f"{overflow.count} entries become infinite where a mask is added, expected 0: two numbers near the "
        f"lowest of {overflow.dtype} add up to -inf, and a row of -inf is NaN"
        + (" (these were hidden already)" if overflow.harmless else ""),
        mend=MEND,
        file=overflow.where.file,
        line=overflow.where.line,
    )


def _dtype(evidence: Evidence) -> torch.dtype | None:
    """What the configuration says the model is run in."""
    stated = evidence.declared.dtype
    found = None if stated is None else getattr(torch, stated.value.removeprefix("torch."), None)
    return found if isinstance(found, torch.dtype) and found.is_floating_point else None


def _gap(one: Scored) -> Iterator[Finding]:
    """A fill that is low by itself, and still not below the scores."""
    healthy, gap = threshold(NAME, "gap"), one.gap()
    strong = [fill for fill in one.fills if fill <= -healthy.low]
    if gap is None or not strong or healthy.holds(gap):
        return
    leak = one.mass(one.hidden) if one.hidden is not None else None
    harmful = leak is not None and not threshold("mask-leak", "mass").holds(leak[0])
    yield Finding(
        severity=Severity.FAULT if harmful else Severity.WARNING,
        site=one.site.name,
        quantity="lowest visible score - highest hidden score",
        measured=gap,
        expected=healthy.low,
        low=healthy.low,
        source=healthy.source,
        message=f"hidden scores, filled with {max(strong):.4g}, stay only {gap:.4g} below visible ones, expected at "
        f"least {healthy.low:g}" + (f": {leak[0]:.3g} of the weight goes to hidden keys" if leak and harmful else ""),
        mend=MEND,
        file=one.site.file,
        line=one.site.line,
    )


def _too_large(where: Where, fill: float, dtype: torch.dtype, why: str) -> Finding:
    most = torch.finfo(dtype).max
    return Finding(
        severity=Severity.FAULT,
        site=f"{where.path}:score",
        quantity="size of the number that hides a key",
        measured=abs(fill),
        expected=most,
        high=most,
        source=f"{dtype} ends at {most:.4g}",
        message=f"hidden scores are set to {fill:.4g}, {abs(fill) / most:.3g} times the largest number of {dtype} "
        f"({most:.4g}), {why}",
        mend=MEND,
        file=where.file,
        line=where.line,
    )


RULE = Rule(
    name=NAME,
    what="The number that hides a key does not fit: too large for the type, infinite when masks are added, or not low "
    "enough.",
    why="A hidden key gets e^(fill - score) of the weight of a visible one: 1e-13 at a distance of 30, below what fp32 "
    "resolves. fp16 ends at 65504, so -1e9 is an error or -inf there; two masks of the lowest number add up to -inf, "
    "a row of which is NaN.",
    when="In half precision, when a causal and a padding mask are added, and when real scores fall as low as a fill of "
    "-1e4 or -1e5. A fill near 0 hides nothing at all: that is mask-leak.",
    example="""
import torch

from surd.audit.specimen import Attention, language_model


class Added(Attention):
    def masked(self, scores, visible):
        lowest = torch.finfo(scores.dtype).min
        places = torch.arange(scores.shape[-1])
        future = torch.zeros(visible.shape).masked_fill(~visible, lowest)
        far = torch.zeros(visible.shape).masked_fill((places[:, None] - places).abs() > 8, lowest)
        return scores + (future + far)


model = language_model()
for block in model.blocks:
    block.attention.__class__ = Added
""",
    cure="""
import torch

from surd.audit.specimen import Attention, language_model


class Combined(Attention):
    def masked(self, scores, visible):
        places = torch.arange(scores.shape[-1])
        far = (places[:, None] - places).abs() > 8
        return scores.masked_fill(~visible | far, torch.finfo(scores.dtype).min / 2)


model = language_model()
for block in model.blocks:
    block.attention.__class__ = Combined
""",
    sources=(
        "huggingface/transformers#27114: a causal and a padding mask added",
        "facebookresearch/fairseq#3575: -1e8 in fp16",
        "TransformerLensOrg/TransformerLens#385: scores of -110000 under a fill of -100000",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    finite=False,
    look=look,
)
