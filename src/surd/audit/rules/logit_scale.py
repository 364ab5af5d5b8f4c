"""Logits leave the head times a factor that nobody declared, or without the declared one."""

from collections.abc import Iterator
from math import exp, isclose, log1p

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.listeners.twice import are_probabilities
from surd.measure.sites import Head

NAME = "logit-scale"
QUANTITY = "factor between the last module's output and the logits, beside the projection"


def look(evidence: Evidence) -> Iterator[Finding]:
    head, stated = evidence.head, evidence.declared.head
    if are_probabilities(evidence.logits):
        raise Unobserved("what the model returns are probabilities, no logits")
    if head.cap is not None and not threshold(NAME, "floor").holds(floor := _floor(evidence, head.cap)):
        yield _low(head, head.cap, floor)
        return
    tolerance = threshold(NAME, "fp32" if evidence.dtype in (torch.float32, torch.float64) else "half")
    expected = 1.0 if stated is None else stated.value
    if not tolerance.holds(head.multiplier / expected):
        yield from _off(evidence, head, expected)
    elif stated is not None and not tolerance.holds(head.multiplier):
        yield _finding(Severity.DECLARED, head, expected, stated.by, f"declared by {stated.by}")
    if evidence.trained:
        yield from _large(evidence, head)


def _floor(evidence: Evidence, cap: float) -> float:
    """The lowest loss that logits between -cap and cap can have: one class at the one end, all others at the other."""
    return log1p((evidence.logits.shape[-1] - 1) * exp(-2 * abs(cap)))


def _low(head: Head, cap: float, floor: float) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=head.site.name,
        quantity="lowest loss that capped logits can have",
        measured=floor,
        expected=0.0,
        high=threshold(NAME, "floor").high,
        source=threshold(NAME, "floor").source,
        message=f"the logits end in {cap:.3g} · tanh: none is beyond ±{cap:.3g}, so that no loss is below {floor:.3g}",
        mend="multiply by the cap behind the tanh: c · tanh(logits / c), with the c that the logits are divided by",
        file=head.site.file,
        line=head.site.line,
    )


def _off(evidence: Evidence, head: Head, expected: float) -> Iterator[Finding]:
    """Another factor than the declared one is wrong; one that nobody declares is judged by the logits it makes."""
    stated = evidence.declared.head
    ratio = head.multiplier / expected
    if not ratio:
        raise Unobserved("no logit depends on the head")
    if stated is not None:
        yield _finding(Severity.FAULT, head, expected, stated.by, f"{stated.by} says {expected:.4g}")
        return
    if evidence.trained:
        yield _finding(Severity.NOTE, head, expected, "a head as projected", "the model was trained with it, perhaps")
        return
    healthy = threshold(NAME, "logit_std")
    std = float(evidence.logits.std(-1, correction=0).mean())
    if healthy.holds(std) and not healthy.holds(std / ratio):
        return  # the pair counts: a table of standard deviation 1 needs 1/√d_model here
    root = head.width**0.5
    name = (
        "√d_model"
        if isclose(ratio, root, rel_tol=0.02)
        else "1/√d_model"
        if isclose(ratio * root, 1, rel_tol=0.02)
        else ""
    )
    reason = f"it is {name}, and makes" if name else "it makes"
    yield _finding(
        Severity.NOTE if healthy.holds(std) else Severity.FAULT,
        head,
        expected,
        "Press and Wolf 2017 (arXiv 1608.05859): logits are the head times the hidden state",
        f"{reason} logits of standard deviation {std:.3g} where they would have {std / ratio:.3g}",
    )


def _large(evidence: Evidence, head: Head) -> Iterator[Finding]:
    """Logits of a trained model that a format of 16 bits can no longer tell apart."""
    healthy = threshold(NAME, "largest")
    largest = float(evidence.logits.abs().max())
    if healthy.holds(largest):
        return
    yield Finding(
        severity=Severity.WARNING,
        site=head.site.name,
        quantity="largest logit",
        measured=largest,
        expected=healthy.high,
        high=healthy.high,
        source=healthy.source,
        message=f"the largest logit is {largest:.4g}: logits have drifted, and ln Z with them",
        mend="train with a z-loss (1e-4 · ln² Z), or cap the logits",
        file=head.site.file,
        line=head.site.line,
    )


def _finding(severity: Severity, head: Head, expected: float, source: str, reason: str) -> Finding:
    wanted = "" if severity is Severity.DECLARED else f", expected {expected:.4g}"
    return Finding(
        severity=severity,
        site=head.site.name,
        quantity=QUANTITY,
        measured=head.multiplier,
        expected=expected,
        source=source,
        message=f"logits are multiplied by {head.multiplier:.4g} beside the projection{wanted}: {reason}",
        mend=f"multiply the logits by {expected:.4g} once, at one place"
        if expected != 1
        else "leave the factor out, or declare it in the configuration and draw the head to suit it",
        file=head.site.file,
        line=head.site.line,
    )


RULE = Rule(
    name=NAME,
    what="Between the last hidden state and the logits stands another factor than the declared one, or than 1.",
    why="A hidden state of unit entries times a head of standard deviation 1/√d_model gives logits of standard "
    "deviation "
    "1. Another factor f makes that f: the order of the classes stays, their probabilities do not.",
    when="Greedy text is the same with a lost factor; sampling, beams, losses and distillation are not. T5 and μP "
    "multiply on purpose, and say so. A factor that suits the head's initialisation is counted together with it. Of "
    "c · tanh(logits / c), whoever forgets the c before the tanh has a loss that cannot fall below "
    "ln(1 + (V − 1) e^−2).",
    example="""
import math

from surd.audit.specimen import WIDTH, LanguageModel, language_model


class Sharp(LanguageModel):
    def logits(self, hidden):
        return self.head(hidden) * math.sqrt(WIDTH) * 4


model = language_model()
model.__class__ = Sharp
""",
    cure="""
from surd.audit.specimen import LanguageModel, language_model


class Plain(LanguageModel):
    def logits(self, hidden):
        return self.head(hidden)


model = language_model()
model.__class__ = Plain
""",
    sources=(
        "Raffel et al. 2020 (arXiv 1910.10683): T5 multiplies tied hidden states by 1/√d_model",
        "vllm-project/vllm#52158: a logits multiplier dropped by a second implementation",
        "Chowdhery et al. 2022 (arXiv 2204.02311), section 5: z-loss",
        "Wortsman et al. 2023 (arXiv 2309.14322): logits that diverge",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("double-softmax", "soft-cap"),
    look=look,
)
