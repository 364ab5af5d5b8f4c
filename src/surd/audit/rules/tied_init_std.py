"""A table that is also the head starts with a standard deviation that suits no head: logits of std √d_model · σ."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.parts import head, std, tables, uses
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.use import Part

NAME = "tied-init-std"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    top, known = head(evidence), tables(evidence)
    if top is None or not known:
        yield Skipped(reason="no table of tokens and head were found")
        return
    weights = evidence.weights
    if not any(name == top or weights.same(name, top) for name in known):
        return  # an untied head is judged by init-std
    width = next(
        (use.fan_in for use in uses(evidence) if use.name == top and use.part is Part.HEAD), weights.shape(top)[-1]
    )
    declared = evidence.declared.head
    seen = evidence.trace.head if weights.module is not None else None
    factor = abs(seen.multiplier) if seen is not None else declared.value if declared is not None else 1.0
    size, healthy = std(weights.tensor(top)), threshold(NAME, "logit_std")
    spread = size * width**0.5 * factor
    if healthy.holds(spread):
        return
    if seen is None and evidence.declared.family is None:
        yield Skipped(site=top, reason="what hidden states are multiplied by before the head shows in a forward alone")
        return
    mended = 1 / (width**0.5 * factor)
    yield Finding(
        severity=Severity.FAULT,
        site=top,
        quantity="σ(E)·√d_model, the standard deviation of the logits",
        measured=spread,
        expected=1.0,
        low=healthy.low,
        high=healthy.high,
        source=healthy.source,
        message=f"the tied table starts with a standard deviation of {size:.4g}, so logits begin with {spread:.3g} "
        f"(√{width} · {size:.3g}" + (f" · {factor:.3g}" if factor != 1 else "") + f"), {spread:.3g} times too large",
        mend=f"draw {top} with a standard deviation of 0.02, or 1/√d_model = {mended:.3g} (rows times √d_model on the "
        "way in), or multiply hidden states by 1/√d_model before the head, as T5 does",
    )


RULE = Rule(
    name=NAME,
    what="A table that is also the head starts too large for a head.",
    why="A hidden state behind the last norm has d_model entries of size 1, so its product with a row of standard "
    "deviation σ has standard deviation σ·√d_model. torch's nn.Embedding draws N(0, 1): logits of std √d_model, and a "
    "first loss of hundreds instead of ln V.",
    when="In untrained models with one matrix for table and head. Untied, a table may have any size.",
    example="""
from torch import nn

from surd.audit.specimen import language_model

model = language_model()
nn.init.normal_(model.table.weight)
nn.init.normal_(model.places.weight, std=0.5)
""",
    cure="""
from torch import nn

from surd.audit.specimen import language_model

model = language_model()
nn.init.normal_(model.table.weight, std=0.02)
nn.init.normal_(model.places.weight, std=0.01)
""",
    sources=(
        "Press & Wolf 2017 (arXiv 1608.05859)",
        "Raffel et al. 2020 (arXiv 1910.10683): a table of std 1 and 1/√d_model before the head",
        "pytorch/pytorch#3121: nn.Embedding starts with N(0, 1)",
    ),
    needs=Needs.STATIC,
    models=Models.UNTRAINED,
    follows=("weight-tying", "logit-scale"),
    look=look,
)
