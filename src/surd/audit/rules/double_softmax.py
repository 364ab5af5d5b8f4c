"""The model returns probabilities where logits belong: the loss takes their softmax again."""

from collections.abc import Iterator
from math import e, log

from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved
from surd.audit.rule import Models, Needs, Rule

NAME = "double-softmax"
FEWEST = 2
"""Classes below which every softmax is 1."""
CLOSE = 1e-3


def look(evidence: Evidence) -> Iterator[Finding]:
    outputs = evidence.outputs
    if not outputs:
        raise Unobserved("the model returns no tensor")
    head = evidence.trace.head
    tables = {table.rows for table in evidence.trace.embeddings}
    first = next((x for x in outputs if x.is_floating_point()), None)
    wide = [x for x in outputs if x.is_floating_point() and x.dim() > 1 and x.shape[-1] in tables]
    judged = wide[0] if wide else first
    if judged is None or judged.dim() < 2 or judged.shape[-1] < FEWEST or not are_probabilities(judged):
        return
    if evidence.subject.loss is not None and not _taken_again(evidence):
        return
    classes = judged.shape[-1]
    site = head.site if head is not None else None
    floor = log(1 + (classes - 1) / e)
    yield Finding(
        severity=Severity.FAULT,
        site=site.name if site is not None else ":logits",
        quantity="sum of the outputs over the classes",
        measured=float(judged.float().sum(-1).mean()),
        expected="another number in every row",
        source="arithmetic: a softmax of probabilities gives no class more than e / (e + V − 1)",
        message=f"every row of the output lies in [0, 1] and sums to 1: these are probabilities, and a cross-entropy "
        f"that takes their softmax again cannot fall below ln(1 + (V − 1)/e) = {floor:.4g}, at V = {classes:,}",
        mend="return the logits, and take a softmax only where probabilities are shown; or give log-probabilities to "
        "a loss that takes no softmax of its own (nll_loss)",
        file=site.file if site is not None else "",
        line=site.line if site is not None else 0,
    )


def _taken_again(evidence: Evidence) -> bool:
    """Whether the loss that was given takes a softmax of what the model returns."""
    try:
        return evidence.targets.of_logits
    except Unobserved:
        return False


def are_probabilities(x: Tensor) -> bool:
    """Whether every row lies in [0, 1] and sums to 1, in more ways than one."""
    rows = x.detach().float().flatten(0, -2)
    sums = rows.sum(-1)
    return bool(((rows >= 0) & (rows <= 1)).all()) and bool(((sums - 1).abs() < CLOSE).all())


RULE = Rule(
    name=NAME,
    what="The model's outputs are probabilities already, and the loss takes their softmax once more.",
    why="Numbers in [0, 1] are at most 1 apart, so a second softmax gives the best class at most e / (e + V − 1): the "
    "loss has a floor of ln(1 + (V − 1)/e) and its gradient is smaller by a factor of V or so.",
    when="With every loss that takes logits, such as torch's cross_entropy. A model that is only asked for "
    "probabilities "
    "may return them.",
    example="""
from surd.audit.specimen import LanguageModel, language_model


class Probable(LanguageModel):
    def logits(self, hidden):
        return self.head(hidden).softmax(-1)


model = language_model()
model.__class__ = Probable
""",
    cure="""
from surd.audit.specimen import LanguageModel, language_model


class Plain(LanguageModel):
    def logits(self, hidden):
        return self.head(hidden)


model = language_model()
model.__class__ = Plain
""",
    sources=("bowang-lab/Transformer-GCN-QA#32: a softmax before torch's cross_entropy",),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
