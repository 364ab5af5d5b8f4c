"""Queries and keys of some layers have outgrown the others, or a learned temperature has no bound."""

from collections import defaultdict
from collections.abc import Iterator
from math import isfinite
from statistics import median

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.errors import SurdError
from surd.measure.listeners.temperature import Temperature
from surd.measure.reading.spectra import Spectrum, spectra
from surd.measure.sites import Attention

NAME = "qk-norm-growth"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    _ = evidence.attention  # without any, nothing grows
    for one in evidence.heard[2].found.values():
        yield from _temperature(one)
    yield from _shared_gains(evidence)
    if not evidence.trained:
        yield Skipped(site="growth over layers", reason="the model is untrained: nothing has grown yet")
        return
    try:
        found = spectra(evidence.module, evidence.inputs)
    except SurdError as error:
        raise Unobserved(str(error)) from error
    yield from _growth(evidence, found)


def _growth(evidence: Evidence, found: list[Spectrum]) -> Iterator[Finding]:
    """A layer against the median of its like, in its weights and in the logits that these give."""
    sites = [one for one in evidence.attention if one.backend != "additive"]
    alike: dict[tuple, list[tuple[Attention, float]]] = defaultdict(list)
    for one in found:
        if one.number < len(sites) and not sites[one.number].qk_norm:
            alike[one.shape].append((sites[one.number], max(one.norms)))
    healthy = threshold(NAME, "growth")
    for group in alike.values():
        for site, norm in group:
            others = [(other, size) for other, size in group if other is not site]
            typical = median([size for _, size in others]) if others else 0.0
            logits = median([_std(other) for other, _ in others]) if others else 0.0
            if not typical or not logits or healthy.holds(norm / typical) or _std(site) / logits < healthy.high / 2:
                continue
            yield Finding(
                severity=Severity.WARNING,
                site=site.name,
                quantity="σ_max(W_q W_kᵀ) over the median of the other layers",
                measured=norm / typical,
                expected=1.0,
                high=healthy.high,
                source=healthy.source,
                message=f"σ_max(W_q W_kᵀ) is {norm:.4g}, {norm / typical:.3g} times the {typical:.4g} of the other "
                f"layers, and logits have {_std(site) / logits:.3g} times their standard deviation",
                mend="normalise query and key, or clip the growth of their projections (QK-clip); a lower learning "
                "rate delays it",
                file=site.site.file,
                line=site.site.line,
            )


def _std(site: Attention) -> float:
    return max(site.softmax.std) if site.softmax is not None else 0.0


def _temperature(one: Temperature) -> Iterator[Finding]:
    bound = threshold(NAME, "temperature")
    if one.exponential and not bound.holds(one.value):
        yield _learned(
            one,
            severity=Severity.WARNING if isfinite(one.value) else Severity.FAULT,
            measured=one.value,
            expected=100.0,
            high=100.0,
            message=f"exp({one.name}) is {one.value:.4g}, expected at most 100: nothing bounds it",
            mend=f"clamp {one.name} at ln 100 = 4.605 after each step, or its exponential where it is used",
        )
    elif not one.exponential and one.meant is not None:
        yield _learned(
            one,
            severity=Severity.FAULT,
            measured=one.value,
            expected=one.meant,
            high=None,
            message=f"{one.name} = {one.value:.4g} = ln {one.meant:.4g} multiplies as it is: similarities are "
            f"{one.meant / one.value:.3g} times too flat",
            mend=f"multiply by {one.name}.exp()",
        )


def _learned(
    one: Temperature,
    *,
    severity: Severity,
    measured: float,
    expected: float,
    high: float | None,
    message: str,
    mend: str,
) -> Finding:
    return Finding(
        severity=severity,
        site=one.name,
        quantity="learned temperature, as applied",
        measured=measured,
        expected=expected,
        high=high,
        source="Radford et al. 2021 (arXiv 2103.00020), section 2.5: exp(t), at most 100",
        message=message,
        mend=mend,
    )


def _shared_gains(evidence: Evidence) -> Iterator[Finding]:
    """One gain of size d_k for all heads: published so, and found not to converge in one case."""
    names = evidence.weights.names()
    for site in evidence.attention:
        if not site.qk_norm or not site.heads or site.heads < 2 or not evidence.trained or site.softmax is None:
            continue
        stds = [std for std in site.softmax.std if std > 0]
        inside = [name for name in names if name.startswith(f"{site.site.path}.")]
        shared = [name for name in inside if tuple(evidence.weights.shape(name)) == (site.d_k,)]
        if shared and stds and max(stds) > threshold(NAME, "growth").high * min(stds):
            yield Finding(
                severity=Severity.NOTE,
                site=site.name,
                quantity="size of the gain of query and key",
                measured=site.d_k,
                expected=site.d_k * site.heads,
                source="NVIDIA/Megatron-LM#1130: one gain for all heads did not converge",
                message=f"{shared[0]} has {site.d_k} entries for {site.heads} heads, whose logits differ "
                f"{max(stds) / min(stds):.3g} times in standard deviation",
                mend=f"give each head its own gain: {site.heads} x {site.d_k}",
            )


RULE = Rule(
    name=NAME,
    what="Queries and keys of some layers have outgrown the others, or a learned temperature has no bound.",
    why="A logit is xᵀ W_qᵀ W_k x: no norm stands behind it, so it grows by the product of two matrices that training "
    "pulls the same way. Three times each is nine times the logits. A learned temperature exp(t) grows without end "
    "unless it is clipped, and a t that is multiplied without exp is 5 times too small at 1/0.07.",
    when="In a checkpoint, before a run diverges: the late layers go first, and their values stay as they were.",
    example="""
import torch

from surd.audit.specimen import language_model

model, trained = language_model(), True
with torch.no_grad():
    model.blocks[1].attention.query.weight *= 3
    model.blocks[1].attention.key.weight *= 3
""",
    cure="""
import torch

from surd.audit.specimen import language_model

model, trained = language_model(), True
with torch.no_grad():
    for block in model.blocks:
        block.attention.query.weight *= 1.5
        block.attention.key.weight *= 1.5
""",
    sources=(
        "Dehghani et al. 2023 (arXiv 2302.05442), section 3",
        "Tsinghua-MARS-Lab/OMG#8: norms of 18.8 and 18.7 grew to 57.4 and 51.1",
        "Radford et al. 2021 (arXiv 2103.00020), section 2.5",
        "openai/CLIP#530, BAAI-DCAI/M3D#52: temperatures without a bound, and without exp",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("attention-scale",),
    look=look,
)
