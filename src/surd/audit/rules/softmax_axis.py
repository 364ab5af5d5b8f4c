"""The softmax runs over another axis than the keys, so that the weights of a query do not add up to 1."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.reading.row_sums import RowSums

NAME = "softmax-axis"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    healthy = threshold(NAME, "deviation")
    sums = evidence.mixing.row_sums
    if not sums and not evidence.mixing.layouts:
        yield Skipped(reason="no softmax attention was seen")
        return
    wrong = [one for one in sums if one.axis != one.mixed or one.by_hand or one.cut]
    sizes = [one for one in wrong if not healthy.holds(abs(one.mean - 1))]
    spread = [one for one in wrong if one not in sizes and not healthy.holds(one.std)]
    yield from as_one(
        (_finding(one, "mean over the rows of the sum of a query's weights", one.mean, 1.0) for one in sizes),
        grave=lambda finding: abs(float(finding.measured) - 1),
    )
    yield from as_one(
        (_finding(x, "standard deviation over the rows of the sum of a query's weights", x.std, 0.0) for x in spread),
        grave=lambda finding: float(finding.measured),
    )


def _cause(one: RowSums) -> str:
    if one.by_hand:
        return f"exp and sum, written out, do not normalise axis {one.mixed}"
    if one.cut:
        return "weights are set to zero behind the softmax"
    return f"the softmax runs over axis {one.axis}, values are mixed over axis {one.mixed}"


def _finding(one: RowSums, quantity: str, measured: float, expected: float) -> Finding:
    cause, mend = _cause(one), "let the softmax run over the axis of the keys, the last of the scores: dim=-1"
    if one.cut:
        mend = "mask the scores, before the softmax: what a weight of zero leaves out then goes to the other keys"
    return Finding(
        severity=Severity.FAULT,
        site=one.site.name,
        quantity=quantity,
        measured=measured,
        expected=expected,
        source="definition of attention: Vaswani et al. 2017, equation 1",
        message=f"{cause}: the weights of a query add up to {one.mean:.4g} ± {one.std:.2g}, expected 1 ± 0",
        mend=mend,
        file=one.site.file,
        line=one.site.line,
    )


RULE = Rule(
    name=NAME,
    what="The softmax runs over another axis than the keys, so that the weights of a query do not add up to 1.",
    why="Attention returns a weighted mean of values, and a mean has weights that add up to 1. Over the queries they "
    "add up to 1 only on average (standard deviation 0.34 over 10 keys), over the batch to as much as the number of "
    "keys; the output then changes size from position to position, and future tokens enter a causal model through the "
    "denominator.",
    when="Always, though a training may hide it: images came out alike within noise. Which axis holds the keys is read "
    "from the product that mixes the values, so transposed scores are judged right.",
    example="""
import torch.nn.functional as F

from surd.audit.specimen import Attention, encoder


class Sideways(Attention):
    def forward(self, x, visible=None):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = F.softmax(self.masked(self.scores(query, key), visible), dim=-2)
        return self.out(self.merge(weights @ value))


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Sideways
""",
    cure="""
import torch.nn.functional as F

from surd.audit.specimen import Attention, encoder


class Upright(Attention):
    def forward(self, x, visible=None):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = F.softmax(self.masked(self.scores(query, key), visible), dim=-1)
        return self.out(self.merge(weights @ value))


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Upright
""",
    sources=(
        "Vaswani et al. 2017 (arXiv 1706.03762), equation 1",
        "labmlai/annotated_deep_learning_paper_implementations#146: softmax over the queries",
        "PetrochukM/PyTorch-NLP#2: softmax over the batch, weights always 1",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
