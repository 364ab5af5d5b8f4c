"""The row of padding in a table is not zero, belongs to another id, or the whole table was cleared with it."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.parts import head, is_blank, tables, uses
from surd.audit.rule import Models, Needs, Rule
from surd.measure.calling.inputs import Inputs, are_ids, tensors
from surd.measure.use import Part

NAME = "padding-row"
TORCH = "torch.nn.Embedding: the row at padding_idx is zero and gets no gradient"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    weights, known, said = evidence.weights, tables(evidence), evidence.declared.padding
    if not known:
        yield Skipped(reason="no table of tokens was found")
        return
    top = head(evidence)
    looked = False
    for name in known:
        row, rows = weights.padding(name), weights.shape(name)[0]
        if is_blank(weights, name):
            if _beside(evidence, name):
                continue
            looked = True
            yield _finding(
                Severity.FAULT, name, "Σ|E|", 0.0, "above 0",
                f"all {rows:,} rows of {name} are zero: whatever cleared the row of padding cleared the table",
                "initialise it again, then `table.weight[pad] = 0` with a number for pad, which None is not",
            )  # fmt: skip
            continue
        if row is not None and said is not None and said.value >= 0 and row != said.value:
            looked = True
            yield _finding(
                Severity.FAULT, name, "id of padding", row, said.value,
                f"{name} has padding_idx {row}, and {said.by} pads with {said.value}: token {row} is never trained, "
                "and padding is",
                f"build the table with padding_idx={said.value}",
            )  # fmt: skip
        if row is None:
            if said is not None and 0 <= said.value < rows and not weights.rows(name, said.value, said.value + 1).any():
                looked = True
                yield _free(name, said.value, said.by)
            continue
        looked = True
        tied = top is not None and (top == name or weights.same(name, top))
        size = float(weights.rows(name, row, row + 1).float().norm())
        if size and not evidence.trained:
            usual = float(weights.top(name).float().norm(dim=1).median())
            yield _finding(
                Severity.FAULT, name, "‖E[pad]‖", size, 0.0,
                f"row {row} of {name} is padding and has length {size:.3g}, as any other ({usual:.3g}); "
                + ("no look-up trains it" if tied else "it gets no gradient and stays that way"),
                f"with torch.no_grad(): {name}[{row}] = 0, after the initialisation",
            )  # fmt: skip
        if not size and (met := _met(evidence, name, row)):
            yield _finding(
                Severity.WARNING, name, "positions with the id of padding", met, 0,
                f"row {row} of {name} is padding, zero and trained by no look-up, and {met} of the positions of the "
                "inputs that were given hold it, some of them before real tokens and none of them masked",
                "leave padding_idx out where its id is a real token, or shift ids by one",
            )  # fmt: skip
    if not looked:
        yield Skipped(
            reason=(f"{said.by} pads with {said.value}, and " if said is not None else "")
            + "no table has a padding_idx; what a masked row holds does no harm, and whether an id is real text "
            "can be told from data alone"
        )


def _free(name: str, row: int, by: str) -> Finding:
    """Padding is known, its row was cleared, and nothing keeps it so: harmless where each mask hides it."""
    return _finding(
        Severity.NOTE, name, "padding_idx", "None", row,
        f"row {row} of {name} is zero as that of padding, with which {by} pads, and padding_idx is None: the row "
        "learns wherever padding is not masked",
        f"build the table with padding_idx={row}",
    )  # fmt: skip


def _beside(evidence: Evidence, name: str) -> bool:
    """Whether a table is only added to another one's rows, as an adapter is, which begins at zero."""
    weights, paths = evidence.weights, evidence.weights.layers()
    rows = {use.fan_out for use in uses(evidence) if use.name == name and use.part is Part.TABLE}
    others = [use for use in uses(evidence) if use.part is Part.TABLE and use.name != name and use.fan_out in rows]
    inner = name.rpartition(".")[0]
    around = {".".join(inner.split(".")[:length]) for length in range(1, len(inner.split(".")) + 1)}
    near = [
        use
        for use in others
        if use.name in weights.names() and use.name.rpartition(".")[0].rpartition(".")[0] in around
    ]
    return weights.shape(name)[0] not in rows or (bool(paths) and any(not is_blank(weights, use.name) for use in near))


def _met(evidence: Evidence, name: str, row: int) -> int:
    """How often the id of padding stands before a real token in inputs that somebody gave, without a mask."""
    given = evidence.subject.inputs
    if given is None or evidence.subject.module is None:
        return 0
    found = [*tensors(given)]
    ids = [x for x in found if are_ids(x) and x.dim() == 2 and int(x.max()) > 1]
    if len(ids) != 1:
        return 0  # of several only the model knows which table each is for
    size = ids[0].shape
    flat = [x for x in found if x is not ids[0] and x.shape == size]
    beside = flat + [x for x in found if x.dim() > 2 and (len(x), x.shape[-1]) == size and not x.is_floating_point()]
    seen = _seen(given, ids[0])
    if beside and seen is None:
        return 0  # a mask hides what it hides
    real = ids[0] != row
    after = real.flip(1).cummax(1).values.flip(1)
    before = real.cummax(1).values
    inner = ~real & after & before
    if seen is None:
        return int(inner.sum())
    return int((~real & seen).sum()) if bool((inner & seen).any()) else 0


def _seen(given: Inputs, ids: Tensor) -> Tensor | None:
    """Which positions the mask that was given beside the ids calls real: `attention_mask`, ones and zeros."""
    named = given.items() if isinstance(given, Mapping) else ()
    masks = [x for name, x in named if "mask" in name and isinstance(x, Tensor) and x.shape == ids.shape]
    if len(masks) != 1 or not bool(((masks[0] == 0) | (masks[0] == 1)).all()):
        return None
    # One that is zero at most positions hides where it is one.
    return masks[0] != 0 if float(masks[0].float().mean()) >= 0.5 else None


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
    "ever real text stands in the data, not in the model. A tied row gets gradient from the softmax all the same, so "
    "it is judged before training alone.",
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
    follows=("weight-tying",),
    look=look,
)
