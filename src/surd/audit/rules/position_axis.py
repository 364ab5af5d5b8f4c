"""Positions do not tell places apart, or tell the rows of the batch apart instead."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.trials.alike import row_difference

NAME = "position-axis"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    yield from _places(evidence)
    if any(flow.sees_other_rows for flow in evidence.trace.flows):
        yield Skipped(site="batch", reason="rows of the batch mix, so equal rows cannot be compared")
        return
    yield from _rows(evidence)


def _places(evidence: Evidence) -> Iterator[Finding | Skipped]:
    """One token at two places must enter as two vectors, where the model means to add positions."""
    trace, declared = evidence.trace, evidence.declared.positions
    for table in trace.embeddings:
        meant = table.blank or table.still
        if trace.positions == "none" and (meant or (declared is not None and declared.value == "added")):
            yield Finding(
                severity=Severity.NOTE if evidence.trained and table.blank else Severity.FAULT,
                site=table.site.name,
                quantity="difference of one token at two places",
                measured=0.0,
                expected="more than 0",
                source=declared.by if declared else "Vaswani et al. 2017, section 3.5",
                message=f"one token is the same vector at every place, though {meant or 'the model'} "
                f"{'holds' if meant else 'is said to add'} positions",
                mend=f"look rows of {meant} up by arange(length)" if table.still else "add positions to the tokens",
                file=table.site.file,
                line=table.site.line,
            )
            return


def _rows(evidence: Evidence) -> Iterator[Finding | Skipped]:
    """One text in two rows of the batch must give one answer."""
    found = row_difference(evidence.module, evidence.inputs)
    if isinstance(found, str):
        yield Skipped(site="batch", reason=found)
        return
    healthy = threshold(NAME, "rows")
    if healthy.holds(found):
        return
    if evidence.declared.positions is None and evidence.trace.positions is None and not evidence.trace.embeddings:
        site = "batch"
    else:
        site = evidence.trace.embeddings[0].site.name if evidence.trace.embeddings else "batch"
    yield Finding(
        severity=Severity.FAULT,
        site=site,
        quantity="difference of one text in two rows of the batch, over its size",
        measured=found,
        expected=0.0,
        high=healthy.high,
        source=healthy.source,
        message=f"one text in different rows of a batch gives outputs that differ by {found:.2g} of their size: what "
        "is meant for places is added by row",
        mend="index positions by the axis of the sequence: positions[: x.shape[1]] of shape (length, d_model) for "
        "(batch, length, d_model)",
    )


RULE = Rule(
    name=NAME,
    what="Positions do not tell places apart, or tell the rows of the batch apart instead.",
    why="Attention without positions does not know order: the same tokens in another order give the same sums. A table "
    "of shape (length, 1, d_model) added to (batch, length, d_model) broadcasts along the batch without an error, and "
    "then every text gets its row's number instead of its places'.",
    when="Always; it is silent, because shapes fit as long as the batch is no larger than the longest text.",
    example="""
from surd.audit.specimen import Encoder, encoder, sinusoids


class ByRow(Encoder):
    def embed(self, tokens):
        x = self.table(tokens) * 8
        return x + sinusoids(64, 64)[:, None][: x.shape[0]]


model = ByRow()
model.load_state_dict(encoder().state_dict())
""",
    cure="""
from surd.audit.specimen import Encoder, encoder, sinusoids


class ByPlace(Encoder):
    def embed(self, tokens):
        x = self.table(tokens) * 8
        return x + sinusoids(64, 64)[None, : x.shape[1]]


model = ByPlace()
model.load_state_dict(encoder().state_dict())
""",
    sources=(
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.5",
        "KasperGroesLudvigsen/influenza_transformer#9: positions built for another order of axes",
    ),
    needs=Needs.COMPARISON,
    models=Models.BOTH,
    follows=("position-ratio", "batch-isolation", "head-layout", "softmax-axis"),
    look=look,
)
