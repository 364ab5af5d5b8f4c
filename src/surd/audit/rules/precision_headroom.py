"""Products or sums come near the largest number that their type can hold, or a loss is coarser than its steps."""

from collections.abc import Iterator

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.listeners.extremes import Extreme, LossRead, extremes

NAME = "precision-headroom"
LIMIT = torch.finfo(torch.float16).max


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    heard = evidence.heard[0].heard
    found, losses = extremes(evidence.module, evidence.inputs, evidence.subject.loss, heard)
    if not found:
        raise Unobserved("the forward calls no product that torch's functions show")
    stated = evidence.declared.dtype
    meant = stated is not None and stated.value.removeprefix("torch.") in ("float16", "half")
    held = [one for one in found if one.dtype is torch.float16 or (meant and one.dtype is not torch.bfloat16)]
    others = [one for one in found if one.dtype is torch.float32]
    healthy = threshold(NAME, "headroom")
    sick = sorted((one for one in held if not healthy.holds(_headroom(one))), key=lambda one: -one.largest)
    if sick:
        yield _finding(sick, Severity.FAULT if sick[0].largest > LIMIT else Severity.WARNING)
    elif would := sorted((one for one in others if not healthy.holds(_headroom(one))), key=lambda one: -one.largest):
        yield _finding(would, Severity.NOTE)
    for loss in losses:
        if not threshold(NAME, "quantum").holds(loss.quantum):
            yield _coarse(loss)
            break


def _headroom(one: Extreme) -> float:
    """How often the largest number may be doubled, so to speak, before it is infinite."""
    return LIMIT / one.largest if one.largest else torch.inf


def _finding(sick: list[Extreme], severity: Severity) -> Finding:
    worst, healthy = sick[0], threshold(NAME, "headroom")
    places = tuple(dict.fromkeys(f"{one.site}:{one.kind}" for one in sick))
    would = severity is Severity.NOTE
    reach = "is infinite" if worst.largest > LIMIT else f"is {_headroom(worst):.3g} times below the end"
    return Finding(
        severity=severity,
        site=places[0],
        sites=places,
        quantity="65504 / largest number, as fp32 has it",
        measured=_headroom(worst),
        expected=healthy.low,
        low=healthy.low,
        source=healthy.source,
        message=f"{worst.kind} reaches {worst.largest:.4g} and {'would be' if would else reach} "
        + (f"{reach.removeprefix('is ')} in float16; it is computed in float32 here" if would else "in float16"),
        mend="bfloat16, or float32 for this module"
        + (": multiply queries by the scale before the product, not after it" if worst.kind == "q·k" else ""),
    )


def _coarse(loss: LossRead) -> Finding:
    healthy = threshold(NAME, "quantum")
    name = str(loss.dtype).removeprefix("torch.")
    return Finding(
        severity=Severity.WARNING,
        site=":loss",
        quantity="step between neighbouring losses",
        measured=loss.quantum,
        expected=0.0,
        high=healthy.high,
        source=healthy.source,
        message=f"the cross-entropy of {loss.value:.4g} is computed from {name} logits in {name}, where neighbouring "
        f"numbers are {loss.quantum:.3g} apart",
        mend="logits.float() before the loss",
    )


RULE = Rule(
    name=NAME,
    what="Products or sums come near the largest number that their type can hold, or a loss is coarser than its steps.",
    why="float16 ends at 65504. A product of d_k entries of size a is up to d_k a²: queries and keys of norm 256 reach "
    "it before the division by √d_k. bfloat16 does not end there, but a loss of 10.8 in it moves in steps of 0.06.",
    when="In float16, by type or autocast; in fp32 it is a note on what half precision would meet.",
    example="""
import torch.nn.functional as F

from surd.audit.specimen import FeedForward, language_model


class Large(FeedForward):
    def forward(self, x):
        return self.outer(F.gelu(self.inner(x)) * 3e4) / 3e4


model = language_model()
for block in model.blocks:
    large = Large(64)
    large.load_state_dict(block.feedforward.state_dict())
    block.feedforward = large
model.half()
""",
    cure="""
import torch.nn.functional as F

from surd.audit.specimen import FeedForward, language_model


class Sized(FeedForward):
    def forward(self, x):
        return self.outer(F.gelu(self.inner(x)))


model = language_model()
for block in model.blocks:
    sized = Sized(64)
    sized.load_state_dict(block.feedforward.state_dict())
    block.feedforward = sized
model.half()
""",
    sources=(
        "IEEE 754-2008: binary16",
        "huggingface/transformers#5651: 66246 behind T5's feed-forward layer",
        "showlab/Tune-A-Video#103: q·k of 3e5",
        "Modalities/modalities#464: cross-entropy of bfloat16 logits",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(
        "attention-scale",
        "qk-norm-growth",
        "attention-logit-max",
        "embedding-scale",
        "residual-growth",
        "init-std",
    ),
    look=look,
)
