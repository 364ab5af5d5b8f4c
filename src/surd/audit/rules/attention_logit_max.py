"""Logits of attention grow beyond what a softmax can use."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.rules.attention_scale import head_name
from surd.audit.thresholds import threshold
from surd.measure.sites import Attention

NAME = "attention-logit-max"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    found: list[Finding] = []
    for site in evidence.attended:
        if site.softmax is None:
            yield Skipped(site=site.name, reason="its logits were not seen")
        else:
            found += _site(site, site.softmax.largest)
    yield from as_one(found, lambda one: float(one.measured))


def _site(site: Attention, heads: tuple[float, ...]) -> Iterator[Finding]:
    usual, sound = threshold(NAME, "usual"), threshold(NAME, "sound")
    grown = [head for head, value in enumerate(heads) if not usual.holds(value)]
    if not grown:
        return
    largest = max(heads)
    grave = not sound.holds(largest)
    yield Finding(
        severity=Severity.FAULT if grave else Severity.WARNING,
        site=site.name if len(grown) == len(heads) else head_name(site, heads.index(largest)),
        quantity="largest |logit| that a row attends by",
        measured=largest,
        expected=usual.high,
        high=usual.high,
        source=sound.source if grave else usual.source,
        message=f"logits reach {largest:.4g} in {len(grown)} of {len(heads)} heads, expected at most {usual.high:g}: a "
        f"key whose logit is {usual.high:g} below the largest has e^-{usual.high:g} of its weight",
        mend="normalise query and key, cap the logits (c · tanh(x / c)), or clip the projections; lower their learning "
        "rate and warm it up longer",
        file=site.site.file,
        line=site.site.line,
    )


RULE = Rule(
    name=NAME,
    what="Logits of attention grow beyond what a softmax can use.",
    why="A key whose logit is 50 below the largest has e⁻⁵⁰ = 2e-22 of its weight. Logits are a product of two growing "
    "projections, so they grow by the square; runs whose logits pass some 100 diverge, in bfloat16 one step of such "
    "numbers is 0.5, and past 10 000 sound scores come near the numbers that masks are filled with.",
    when="In trainings at high learning rates, in half precision, and in checkpoints that are to be trained on.",
    example="""
import torch

from surd.audit.specimen import language_model

model, trained = language_model(), True
with torch.no_grad():
    for block in model.blocks:
        block.attention.query.weight *= 60
        block.attention.key.weight *= 60
""",
    cure="""
import torch

from surd.audit.specimen import language_model

model, trained = language_model(), True
with torch.no_grad():
    for block in model.blocks:
        block.attention.query.weight *= 6
        block.attention.key.weight *= 6
""",
    sources=(
        "Dehghani et al. 2023 (arXiv 2302.05442): ViT-22B diverged as logits grew",
        "Wortsman et al. 2023 (arXiv 2309.14322)",
        "Gemma Team 2024 (arXiv 2408.00118): a soft cap at 50",
        "Kimi Team 2025 (arXiv 2507.20534): QK-clip at 100",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(
        "attention-scale",
        "qk-norm-growth",
        "embedding-scale",
        "init-std",
        "soft-cap",
        "norm-gain-convention",
        "residual-growth",
    ),
    look=look,
)
