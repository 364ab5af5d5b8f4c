"""√d_model, or the declared factor, is rounded to another type than that of the training it comes from."""

from collections.abc import Iterator

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.sites import Embedding

NAME = "constant-rounding"
CLOSE = 0.005
"""A factor further off is another factor."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    tables = [table for table in evidence.trace.embeddings if table.multiplier is not None]
    if not tables:
        raise Unobserved("no table of tokens was read whose rows enter times a factor")
    for table in tables:
        if table.dtype:
            yield _widened(evidence, table)
        yield from _rounded(evidence, table)


def _rounded(evidence: Evidence, table: Embedding) -> Iterator[Finding]:
    """What is multiplied by, beside the number that the reference multiplies by."""
    assert table.multiplier is not None
    stated = evidence.declared.embedding
    exact = stated.value if stated else table.width**0.5
    off = table.multiplier / exact - 1
    healthy = threshold(NAME, "rounding")
    kept = evidence.declared.embedding_rounded
    narrow = float(torch.tensor(exact, dtype=evidence.dtype))
    if abs(narrow / exact - 1) > healthy.high and healthy.holds(abs(off)) and (kept is not None or stated is None):
        yield _unrounded(evidence, table, exact, narrow)
    if abs(off) > CLOSE or healthy.holds(abs(off)):
        return
    own = float(torch.tensor(exact, dtype=evidence.dtype))
    if stated is not None and abs(table.multiplier / own - 1) < max(healthy.high / 5, abs(own / exact - 1) / 4):
        return  # the declared number, in the type of a model that has no other; its products are rounded besides
    source = stated.by if stated else f"arithmetic: √{table.width}"
    message = f"rows are multiplied by {table.multiplier:.6g} where {source} has {exact:.6g}: {off:+.3%}, as rounding "
    mend = f"multiply by {exact:.6g} in the type in which the reference kept it: a number that was rounded in its "
    mend += "training stays rounded, and one that was not stays in fp32"
    yield _finding(table, stated is not None, off, source, f"{message}to 8 significant bits makes it", mend)


def _unrounded(evidence: Evidence, table: Embedding, exact: float, narrow: float) -> Finding:
    """A factor in full beside rows of 16 bits, where a reference in that type multiplies by the rounded one."""
    assert table.multiplier is not None
    kept = evidence.declared.embedding_rounded
    stored, off = str(evidence.dtype).removeprefix("torch."), table.multiplier / narrow - 1
    source = kept.by if kept else f"arithmetic: √{table.width} in {stored}"
    told = f"{kept.by} has" if kept else f"a reference that keeps √{table.width} in {stored} has"
    message = f"rows of {stored} are multiplied by {exact:.6g}, and {told} {narrow:.6g}: {off:+.3%}"
    mend = f"convert the factor to {stored} before it multiplies, if the weights come from such a training"
    return _finding(table, kept is not None, off, source, message, mend)


def _finding(table: Embedding, harm: bool, off: float, source: str, message: str, mend: str) -> Finding:
    """A warning where somebody states what the reference multiplies by; else nobody knows that it differs."""
    healthy = threshold(NAME, "rounding")
    return Finding(
        severity=Severity.WARNING if harm else Severity.NOTE,
        site=table.site.name,
        quantity="f / reference - 1",
        measured=off,
        expected=0.0,
        low=-healthy.high,
        high=healthy.high,
        source=source,
        message=message,
        mend=mend,
        file=table.site.file,
        line=table.site.line,
    )


def _widened(evidence: Evidence, table: Embedding) -> Finding:
    """A factor in fp32 makes all that it touches fp32."""
    stored = str(evidence.dtype).removeprefix("torch.")
    return Finding(
        severity=Severity.WARNING,
        site=table.site.name,
        quantity="type of what enters",
        measured=table.dtype,
        expected=stored,
        source="google/gemma_pytorch#67; torch's promotion of types",
        message=f"rows are stored as {stored} and enter as {table.dtype}: the factor is a tensor of {table.dtype} and "
        "widens what it multiplies",
        mend=f"keep the factor as a number, or convert it to {stored}",
        file=table.site.file,
        line=table.site.line,
    )


RULE = Rule(
    name=NAME,
    what="√d_model, or the declared factor, is rounded to another type than that of the training it comes from.",
    why="bfloat16 keeps 8 significant bits: √3072 = 55.4256 becomes 55.5, +0.13 %; √5376 = 73.3212 becomes 73.5, +0.24 "
    "%; the worst is 0.39 %. All that follows was trained with the one number, and each port that takes the other is "
    "off by as much at every position.",
    when="Between a model and its port or its next checkpoint. In a model that is trained as it stands either number "
    "will do.",
    example="""
import torch
from torch import nn

from surd.audit.declared import Declared, Stated
from surd.audit.specimen import Encoder, encoder

declared = Declared(embedding=Stated(48**0.5, "the training's code"))


class Narrow(Encoder):
    def embed(self, tokens):
        rows = self.table(tokens) * torch.tensor(48**0.5).bfloat16().float()
        return self.up(rows) + self.places[: tokens.shape[1]]


torch.manual_seed(0)
model = Narrow()
model.load_state_dict(encoder().state_dict())
model.table, model.up = nn.Embedding(500, 48, padding_idx=0), nn.Linear(48, 64, bias=False)
nn.init.normal_(model.table.weight, std=48**-0.5)
nn.init.xavier_uniform_(model.up.weight)
with torch.no_grad():
    model.table.weight[0] = 0
""",
    cure="""
import torch
from torch import nn

from surd.audit.declared import Declared, Stated
from surd.audit.specimen import Encoder, encoder

declared = Declared(embedding=Stated(48**0.5, "the training's code"))


class Narrow(Encoder):
    def embed(self, tokens):
        return self.up(self.table(tokens) * 48**0.5) + self.places[: tokens.shape[1]]


torch.manual_seed(0)
model = Narrow()
model.load_state_dict(encoder().state_dict())
model.table, model.up = nn.Embedding(500, 48, padding_idx=0), nn.Linear(48, 64, bias=False)
nn.init.normal_(model.table.weight, std=48**-0.5)
nn.init.xavier_uniform_(model.up.weight)
with torch.no_grad():
    model.table.weight[0] = 0
""",
    sources=(
        "huggingface/transformers#29402: √3072 in bfloat16 and in fp32",
        "huggingface/transformers#37109: 73.32 for 73.5",
        "google/gemma_pytorch#67: a factor that widens what it multiplies",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
