"""The head has rows that belong to no token, and the softmax gives them probability."""

from collections.abc import Iterator

import torch
from torch import Tensor

from surd.audit.declared import Stated
from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.parts import head, tables, uses
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.use import Part

NAME = "vocab-rows"
ROUND = 8
"""Rows are filled up to multiples of this, or of more, for the sake of speed."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    said, top = evidence.declared.vocabulary, head(evidence) or _filled_up(evidence)
    said = said or _by_zeros(evidence, top)
    if said is None:
        yield Skipped(reason="nothing says how many tokens the tokenizer has")
        return
    for name in tables(evidence):
        rows = evidence.weights.shape(name)[0]
        if rows < said.value and top is not None:
            yield _finding(
                Severity.WARNING, name, "rows of the table", rows, said.value, said.by,
                f"{name} has {rows:,} rows and {said.by} {said.value:,} tokens: the last {said.value - rows:,} "
                "have none",
                f"resize the table to {said.value:,} rows",
            )  # fmt: skip
    if top is None:
        return
    found = (use.fan_out for use in uses(evidence) if use.name == top and use.part is Part.HEAD)
    rows = next(found, evidence.weights.shape(top)[0])
    extra = rows - said.value
    if extra <= 0:
        return
    mass, healthy = _mass(evidence, rows, said.value), threshold(NAME, "mass")
    blank = _blank(evidence, top, said.value)
    text = f"{top} has {rows:,} rows, {said.by} {said.value:,} tokens: {extra:,} rows belong to none"
    if mass is None:
        yield _finding(
            Severity.NOTE, top, "rows of the head", rows, said.value, said.by, text, "mask or drop the rows",
            high=said.value,
        )  # fmt: skip
    elif not healthy.holds(mass):
        least = extra < ROUND and (rows % ROUND == 0 or said.by != "tokenizer.json")
        filled = least or (rows % ROUND == 0 and threshold(NAME, "filled").holds(mass))
        harmless = filled and not blank and not evidence.trained
        yield _finding(
            Severity.NOTE if harmless else Severity.WARNING, top, "probability of rows beyond the tokenizer", mass, 0.0,
            healthy.source, f"{text}, and get {mass:.3g} of the probability" + (", all of them zeros" if blank else ""),
            f"cut the logits to [..., :{said.value}], or set those beyond to -inf", high=healthy.high,
        )  # fmt: skip


def _filled_up(evidence: Evidence) -> str | None:
    """A matrix that goes on with zeros where the table of tokens ends, and as wide as what is returned: a head."""
    if evidence.subject.module is None:
        return None
    weights = evidence.weights
    widths = {x.shape[-1] for x in evidence.outputs if x.is_floating_point() and x.dim() >= 2}
    for table in tables(evidence):
        rows = weights.shape(table)[0]
        for name, shape in weights.matrices():
            if shape[0] in widths and shape[0] > rows + 1:
                matrix = weights.tensor(name)
                if bool(matrix[rows - 1].any()) and not bool(matrix[rows:].any()):
                    return name
    return None


def _by_zeros(evidence: Evidence, top: str | None) -> Stated[int] | None:
    """How many rows come before those at the end that are all zeros, which no initialisation draws; one may pad."""
    if top is None:
        return None
    matrix = evidence.weights.tensor(top)
    filled = matrix.reshape(len(matrix), -1).ne(0).any(-1).nonzero().flatten()
    tokens = int(filled[-1]) + 1 if len(filled) else 0
    return Stated(tokens, "the zeros at the end of the head:") if 0 < tokens < len(matrix) - 1 else None


def _mass(evidence: Evidence, rows: int, tokens: int) -> float | None:
    """Of the rows beyond the tokenizer, mean over positions; None where there are no logits to look at."""
    if evidence.subject.module is None:
        return None
    for output in evidence.outputs:
        if output.is_floating_point() and output.dim() >= 2 and output.shape[-1] == rows:
            return float(output.float().softmax(-1)[..., tokens:].sum(-1).mean())
    return 0.0  # what is returned has been cut


def _blank(evidence: Evidence, name: str, tokens: int) -> bool:
    matrix: Tensor = evidence.weights.tensor(name)
    return matrix.shape[0] > tokens and not torch.count_nonzero(matrix[tokens:])


def _finding(
    severity: Severity,
    site: str,
    quantity: str,
    measured: float,
    expected: float,
    source: str,
    message: str,
    mend: str,
    high: float | None = None,
) -> Finding:
    return Finding(
        severity=severity,
        site=site,
        quantity=quantity,
        measured=measured,
        expected=expected,
        high=high,
        source=source,
        message=message,
        mend=mend,
    )


_MODEL = """
import torch
from torch import nn

from surd.audit.declared import Declared, Stated
from surd.audit.specimen import LanguageModel, VOCABULARY, WIDTH, language_model

declared = Declared(vocabulary=Stated(VOCABULARY, "the tokenizer"))


class Filled(LanguageModel):
    def forward(self, tokens):
        return {returned}


model = language_model()
model.__class__ = Filled
wide = torch.cat([model.table.weight.detach(), torch.zeros(12, WIDTH)])
model.table.weight = model.head.weight = nn.Parameter(wide)
model.table.num_embeddings = VOCABULARY
"""

RULE = Rule(
    name=NAME,
    what="The head has more rows than there are tokens, and rows of none get probability.",
    why="A row that is never a target is pushed down only by the softmax of others. A row of zeros has the logit 0: "
    "where all real logits are negative, it wins. Of V + k equal logits the k rows take k / (V + k).",
    when="When matrices are filled up to a round number, or hold rows of positions too. A few rows that training has "
    "pushed below 1e-4 together do no harm, nor do logits that are cut before the softmax. Before training, rows up to "
    "a round number are a note while they take less than 2 %, as in every published model that is filled up.",
    example=_MODEL.format(returned="super().forward(tokens)"),
    cure=_MODEL.format(returned="super().forward(tokens)[..., :VOCABULARY]"),
    sources=(
        "mirage-project/mirage#751: 47 rows of zeros win under negative logits",
        "huggingface/pytorch-openai-transformer-lm#47: positions in the tied matrix",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
