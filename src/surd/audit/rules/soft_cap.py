"""A declared soft cap on scores or logits is not applied, or with another bound."""

from collections.abc import Iterator

from surd.audit.declared import Stated
from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.sites import Site

NAME = "soft-cap"


def look(evidence: Evidence) -> Iterator[Finding]:
    declared = evidence.declared
    if declared.score_cap is None and declared.logit_cap is None:
        raise Unobserved("no soft cap is declared, neither of scores nor of logits")
    if declared.score_cap is not None:
        for one in evidence.attention:
            yield from _judged(one.site, "scores", one.cap, declared.score_cap)
    if declared.logit_cap is not None:
        yield from _judged(evidence.head.site, "logits", evidence.head.cap, declared.logit_cap)


def _judged(site: Site, what: str, found: float | None, stated: Stated[float]) -> Iterator[Finding]:
    if found is not None and threshold(NAME, "bound").holds(found / stated.value):
        return
    told = "are not capped" if found is None else f"are capped at {found:.4g}"
    yield Finding(
        severity=Severity.FAULT,
        site=site.name,
        quantity="c of c · tanh(x / c)",
        measured=0.0 if found is None else found,
        expected=stated.value,
        source=stated.by,
        message=f"the {what} {told}, where {stated.by} says {stated.value:.4g}: those beyond the cap come out "
        "too large",
        mend=f"apply {stated.value:g} · tanh({what} / {stated.value:g}) before the softmax; a fused kernel "
        "without a cap "
        "drops it in silence, so use the one written out",
        file=site.file,
        line=site.line,
    )


RULE = Rule(
    name=NAME,
    what="A soft cap that the configuration declares is not applied to the scores of attention, or to the logits.",
    why="c · tanh(x / c) is x while |x| is far below c, and never more than c: at c = 50, a raw score of 100 "
    "becomes 48.2. "
    "Without it the same weights give other probabilities, and the more so the sharper the model.",
    when="In models that were trained with a cap, once scores come near it; at the start nothing is to be seen in the "
    "numbers, so the cap is looked for in what the forward computes.",
    example="""
from surd.audit.declared import Declared, Stated
from surd.audit.specimen import language_model

declared = Declared(score_cap=Stated(50.0, "config.attn_logit_softcapping"))
model = language_model()
""",
    cure="""
from surd.audit.declared import Declared, Stated
from surd.audit.specimen import Attention, language_model


class Capped(Attention):
    def scores(self, query, key):
        return 50.0 * (super().scores(query, key) / 50.0).tanh()


declared = Declared(score_cap=Stated(50.0, "config.attn_logit_softcapping"))
model = language_model()
for block in model.blocks:
    block.attention = Capped(block.attention.width, block.attention.heads)
""",
    sources=(
        "Gemma Team 2024 (arXiv 2408.00118): caps of 50 on scores and 30 on logits",
        "sgl-project/sglang#33915: a cap handed to a call that ignores it",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
