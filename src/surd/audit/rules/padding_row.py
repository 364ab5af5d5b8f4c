"""The row of padding in a table is not zero, belongs to another id, or the whole table was cleared with it."""

from collections.abc import Iterator

import torch
from torch import nn

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.parts import head, is_one, tables
from surd.audit.rule import Models, Needs, Rule
from surd.measure.naming import display_path

NAME = "padding-row"
TORCH = "torch.nn.Embedding: the row at padding_idx is zero and gets no gradient"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    known = tables(evidence)
    if not known:
        yield Skipped(reason="no table of tokens was found")
        return
    top = head(evidence)
    looked = False
    for name in known:
        table = evidence.weights.tensor(name)
        row = _padding(evidence, name)
        said = evidence.declared.padding
        if not table.count_nonzero():
            looked = True
            yield _finding(
                Severity.FAULT, name, "Σ|E|", 0.0, "above 0",
                f"all {table.shape[0]} rows of {name} are zero: whatever cleared the row of padding cleared the table",
                "initialise it again, then `table.weight[pad] = 0` with a number for pad, which None is not",
            )  # fmt: skip
            continue
        if row is not None and said is not None and said.value >= 0 and row != said.value:
            looked = True
            yield _finding(
                Severity.FAULT, name, "id of padding", row, said.value,
                f"{name} has padding_idx {row}, and {said.by} pads with {said.value}: token {row} is never trained, and "
                "padding is",
                f"build the table with padding_idx={said.value}",
            )  # fmt: skip
        if row is None:
            continue
        looked = True
        tied = top is not None and (top == name or _one(evidence, name, top))
        size = float(table[row].float().norm())
        if size and not tied and not evidence.trained:
            usual = float(table.float().norm(dim=1).median())
            yield _finding(
                Severity.FAULT, name, "‖E[pad]‖", size, 0.0,
                f"row {row} of {name} is padding and has length {size:.3g}, as any other ({usual:.3g}); it gets no "
                "gradient and stays that way",
                f"with torch.no_grad(): {name}[{row}] = 0, after the initialisation",
            )  # fmt: skip
    if not looked:
        yield Skipped(
            reason="no table has a padding_idx; what a masked row holds does no harm, and whether an id is real text can "
            "be told from data alone"
        )


def _padding(evidence: Evidence, name: str) -> int | None:
    """The id that the module which holds a table treats as padding."""
    module = evidence.subject.module
    if module is None:
        return None
    table = evidence.weights.tensor(name)
    for path, part in module.named_modules():
        row = getattr(part, "padding_idx", None)
        if isinstance(part, nn.Embedding) and isinstance(row, int) and is_one(part.weight, table):
            return row if display_path(path) or 0 <= row < len(table) else None
        own = getattr(part, "weight", None)
        if isinstance(row, int) and isinstance(own, torch.Tensor) and own.dim() == 2 and is_one(own, table):
            return row
    return None


def _one(evidence: Evidence, first: str, second: str) -> bool:
    weights = evidence.weights
    return weights.module is not None and is_one(weights.tensor(first), weights.tensor(second))


def _finding(
    severity: Severity, site: str, quantity: str, measured: float | str, expected: float | str, message: str, mend: str
) -> Finding:
    return Finding(
        severity=severity,
        site=site,
        quantity=quantity,
        measured=measured,
        expected=expected,
        source=TORCH,
        message=message,
        mend=mend,
    )


RULE = Rule(
    name=NAME,
    what="The row of padding is not zero where torch keeps it from learning, or is the row of another id.",
    why="padding_idx zeroes a row when the table is made, and never again: an initialisation afterwards draws it like "
    "any other, ‖E[pad]‖ = √d_model · σ, and as it gets no gradient it stays. Where padding_idx is the id of a real "
    "token, that token stays zero.",
    when="Where padding is not masked everywhere: pooled sentences, convolutions, recurrent layers. Whether an id is "
    "ever real text stands in the data, not in the model. A tied table gets gradient from the softmax all the same.",
    example="""
from torch import nn

from surd.audit.specimen import WIDTH, encoder

model = encoder()
nn.init.normal_(model.table.weight, std=WIDTH**-0.5)
""",
    cure="""
import torch
from torch import nn

from surd.audit.specimen import WIDTH, encoder

model = encoder()
nn.init.normal_(model.table.weight, std=WIDTH**-0.5)
with torch.no_grad():
    model.table.weight[model.table.padding_idx] = 0
""",
    sources=(
        "torch.nn.Embedding, padding_idx",
        "pytorch/pytorch#6411: an initialisation overwrites the zero row",
    ),
    needs=Needs.STATIC,
    models=Models.BOTH,
    follows=(),
    look=look,
)
