"""A softmax is taken of what is a softmax already: the loss cannot fall, or the weights are nearly uniform."""

from collections.abc import Iterator
from math import e, log

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.measure.listeners.twice import are_probabilities
from surd.measure.sites import Role
from surd.measure.trace.naming import Where

NAME = "double-softmax"


def look(evidence: Evidence) -> Iterator[Finding]:
    heard = evidence.heard[3].found
    if heard:
        yield from as_one((_finding(one.where, one.name, one.classes, one.total) for one in heard), grave=lambda _: 0.0)
    elif evidence.subject.loss is None:  # then the model is meant to return what a loss of logits takes
        yield from _returned(evidence)


def _returned(evidence: Evidence) -> Iterator[Finding]:
    outputs = [x for x in evidence.outputs if x.is_floating_point()]
    if not outputs:
        raise Unobserved("the model returns no tensor")
    tables = {table.rows for table in evidence.trace.embeddings}
    judged = next((x for x in outputs if x.dim() > 1 and x.shape[-1] in tables), outputs[0])
    if judged.dim() > 1 and are_probabilities(judged):
        head = evidence.trace.head
        where = Where(path="", file="", line=0)
        if head is not None:
            where = Where(path=head.site.path, file=head.site.file, line=head.site.line)
        total = float(judged.float().sum(-1).mean())
        yield _finding(where, "a cross-entropy", judged.shape[-1], total)


def _finding(where: Where, name: str, classes: int, total: float) -> Finding:
    floor = log(1 + (classes - 1) / e)
    return Finding(
        severity=Severity.FAULT,
        site=f"{where.path}:{Role.LOGITS}",
        quantity="sum over the classes of what the last softmax takes",
        measured=total,
        expected="another number in every row",
        source="arithmetic: a softmax of probabilities gives no class more than e / (e + V − 1)",
        message=f"every row lies in [0, 1] and sums to 1: these are probabilities, and {name} takes their softmax "
        f"again, so that a loss cannot fall below ln(1 + (V − 1)/e) = {floor:.4g}, at V = {classes:,}",
        mend="return the logits, and take a softmax only where probabilities are shown; or give log-probabilities to "
        "a loss that takes no softmax of its own (nll_loss)",
        file=where.file,
        line=where.line,
    )


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
