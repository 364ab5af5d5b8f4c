"""One sample of a batch reaches the output of another."""

from collections.abc import Iterator

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.calling.inputs import replaced
from surd.measure.reading.reach import Reach

NAME = "batch-isolation"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    reaches = evidence.mixing.reaches
    if not reaches:
        yield Skipped(reason="no gradient leads from an output to an input")
    for reach in reaches:
        if not reach.finite:
            yield Skipped(site=reach.source, reason="its gradients are not finite")
        elif not reach.samples:
            yield Skipped(site=reach.source, reason="the output has other rows than it: its rows may be no samples")
        elif not threshold(NAME, "steps").holds(reach.other_rows / reach.step) and not (
            reach.one_column and _length_first(evidence, reach)
        ):
            yield _finding(reach)


def _length_first(evidence: Evidence, reach: Reach) -> bool:
    """Whether a model that mixes along the first axis also counts positions there: then it is the axis of time."""
    if reach.numbers:
        return True  # of vectors nobody says which axis is which

    def constant(x: Tensor) -> Tensor:
        return x if x.is_floating_point() or x.dim() < 2 else torch.full_like(x, int(x.flatten()[-1]))

    outputs = [x for x in evidence.run(replaced(evidence.inputs, constant)) if x.is_floating_point() and x.dim() > 2]
    return bool(outputs) and not torch.allclose(outputs[0], outputs[0][:1].expand_as(outputs[0]), rtol=1e-4, atol=1e-6)


def _finding(reach: Reach) -> Finding:
    across = "the model mixes along the axis of the batch" if reach.one_column else "rows are mixed with each other"
    return Finding(
        severity=Severity.FAULT,
        site=reach.source,
        quantity="share of an output's gradient that comes from other samples",
        measured=reach.other_rows,
        expected=0.0,
        source="definition of a batch: samples are computed beside each other",
        message=f"an output depends on other samples of its batch ({reach.other_rows:.3g} of its gradient, expected "
        f"0): {across}",
        mend="give attention (batch, length, width) with batch_first=True, or transpose before and after"
        if reach.one_column
        else "keep the batch in front wherever heads are cut and merged: view(batch, length, heads, d_k)"
        ".transpose(1, 2), and back with the same sizes in the same order",
    )


RULE = Rule(
    name=NAME,
    what="One sample of a batch reaches the output of another.",
    why="Samples are computed side by side: the gradient of one's output with respect to another's input is 0. "
    "Where heads and batch change places, or torch's attention gets (batch, length, width) while it expects "
    "(length, batch, width), shapes fit, the loss falls, and what a sample gets depends on its neighbours.",
    when="Always; at batch size 1 it cannot be seen, so evaluation looks different from training. A norm over a batch "
    "in eval mode uses stored statistics and does not mix.",
    example="""
from torch import nn

from surd.audit.specimen import HEADS, WIDTH, encoder


class Fast(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x, visible=None):
        hidden = None if visible is None else ~visible[:, 0, 0]
        return self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


model = encoder()
for block in model.blocks:
    block.attention = Fast()
""",
    cure="""
from torch import nn

from surd.audit.specimen import HEADS, WIDTH, encoder


class Fast(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x, visible=None):
        hidden = None if visible is None else ~visible[:, 0, 0]
        return self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


model = encoder()
for block in model.blocks:
    block.attention = Fast()
""",
    sources=(
        "gazelle93/Transformer-Various-Positional-Encoding#1: heads and batch change places",
        "torch.nn.MultiheadAttention: batch_first is False by default",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("head-layout", "softmax-axis"),
    look=look,
)
