"""Rows of an untrained softmax put all their weight on one key, and pass no gradient."""

from collections.abc import Iterator
from math import isnan

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.rules.attention_scale import head_name
from surd.audit.thresholds import threshold
from surd.measure.sites import Attention
from surd.measure.softmax.statistics import DEAD, FEWEST_KEYS

NAME = "softmax-saturation"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    found: list[Finding] = []
    for site in evidence.attended:
        if site.softmax is None or site.softmax.keys < FEWEST_KEYS:
            yield Skipped(site=site.name, reason=f"no row of its softmax was seen with {FEWEST_KEYS} keys or more")
        else:
            found += _site(site)
    yield from as_one(found, lambda one: float(one.measured))


def _site(site: Attention) -> Iterator[Finding]:
    assert site.softmax is not None
    healthy = threshold(NAME, "dead")
    shares = {head: share for head, share in enumerate(site.softmax.dead) if not isnan(share)}
    sick = {head: share for head, share in shares.items() if _is_sick(share, site.softmax.std[head])}
    if not sick:
        return
    whole = len(sick) == len(shares)
    worst = max(sick, key=lambda head: sick[head])
    share = sum(sick.values()) / len(sick)
    std = site.softmax.std[worst]
    yield Finding(
        severity=Severity.WARNING,
        site=site.name if whole else head_name(site, worst),
        quantity="share of dead rows: ‖diag(p) − p pᵀ‖ < 0.01",
        measured=share,
        expected=0.0,
        high=healthy.high,
        source=healthy.source,
        message=f"{share:.0%} of the softmax rows of {len(sick)} of {len(shares)} heads are dead (a Jacobian below "
        f"{DEAD}): logits have a standard deviation of {std:.3g} within a row, expected about 1",
        mend=f"make the logits {std:.2g} times smaller: by the initialisation of query and key, a norm of both, or a "
        "norm before the block; biases on scores count as logits",
        file=site.site.file,
        line=site.site.line,
    )


def _is_sick(share: float, std: float) -> bool:
    """Among rows of few keys some are dead by chance even where the logits are of a healthy size."""
    if threshold(NAME, "logit_std").holds(std):
        return not threshold(NAME, "short").holds(share)
    return not threshold(NAME, "dead").holds(share)


RULE = Rule(
    name=NAME,
    what="Rows of an untrained softmax put all their weight on one key, and pass no gradient.",
    why="The Jacobian of a softmax is diag(p) − p pᵀ: 0 where one p is 1. With logits of standard deviation 1 no row "
    "of it is below 0.01; at 8 it is 14 % of the rows of 128 keys, at 16 more than a third. A norm of the gradient "
    "does not show it, because the rows that live get more.",
    when="At the start: a dead row cannot learn where to look. After training sharp heads are normal.",
    example="""
from surd.audit.specimen import Attention, language_model


class Distance(Attention):
    def scores(self, query, key):
        scores = super().scores(query, key)
        place = torch.arange(query.shape[-2])
        return scores - 12.0 * (place[:, None] - place).abs()


import torch

model = language_model()
for block in model.blocks:
    attention = Distance(block.attention.width, block.attention.heads)
    attention.load_state_dict(block.attention.state_dict())
    block.attention = attention
""",
    cure="""
import torch

from surd.audit.specimen import Attention, language_model


class Distance(Attention):
    def scores(self, query, key):
        scores = super().scores(query, key)
        place = torch.arange(query.shape[-2])
        return scores - 0.12 * (place[:, None] - place).abs()


model = language_model()
for block in model.blocks:
    attention = Distance(block.attention.width, block.attention.heads)
    attention.load_state_dict(block.attention.state_dict())
    block.attention = attention
""",
    sources=(
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1 and footnote 4",
        "Zhai et al. 2023 (arXiv 2303.06296): entropy collapse",
        "huggingface/transformers#45676: normalised queries and keys without a scale",
    ),
    needs=Needs.PROBE,
    models=Models.UNTRAINED,
    follows=(
        "attention-scale",
        "embedding-scale",
        "init-std",
        "attention-logit-max",
        "soft-cap",
        "norm-gain-convention",
        "residual-path",
        "residual-growth",
        "softmax-axis",
        "head-layout",
    ),
    look=look,
)
