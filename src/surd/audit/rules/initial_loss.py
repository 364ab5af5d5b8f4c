"""An untrained model does not start near ln V: its logits are too large, or it copies its input."""

from collections.abc import Iterator
from math import log

from surd.audit.declared import Stated
from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold

NAME = "initial-loss"
SOURCE = "ln V + s²/2, the mean of −ln softmax over logits of standard deviation s"


def look(evidence: Evidence) -> Iterator[Finding]:
    logits, head = evidence.logits, evidence.head
    classes = logits.shape[-1]
    uniform = log(classes)
    first = float((logits.logsumexp(-1) - logits.mean(-1)).mean())
    std = float(logits.std(-1, correction=0).mean())
    tied = any(tie.same_storage for tie in evidence.trace.ties if head.weight in (tie.first, tie.second))
    own = own_logit(evidence) if tied else None
    over = threshold(NAME, "tied_excess" if tied else "excess")
    told = f"the first loss on random tokens is {first:.4g}, {first - uniform:.3g} above ln V = {uniform:.4g}"
    mend = _mend(tied, head.width)
    if std > threshold(NAME, "logit_std").high:
        severity, reason = Severity.FAULT, f"its logits have a standard deviation of {std:.3g}, expected about 1"
    elif not over.holds(first - uniform):
        severity, reason = Severity.WARNING, f"its logits have a standard deviation of {std:.3g}"
    elif own is not None and own > uniform:
        severity = Severity.WARNING
        reason = f"the input's own token has a logit of {own:.3g}, more than ln V: the model copies what it reads"
        mend = f"{mend}, or end in a norm of the whole stream (post-norm), which forgets the token"
    else:
        return
    stated = _stated(evidence, head.weight) if tied and severity is Severity.WARNING else None
    if stated is not None:
        severity, reason = Severity.DECLARED, f"{reason}; declared by {stated.by}"
    yield Finding(
        severity=severity,
        site=head.site.name,
        quantity="first loss − ln V",
        measured=first - uniform,
        expected=0.0,
        high=over.high,
        source=f"{SOURCE}; {over.source}",
        message=f"{told}: {reason}",
        mend=mend,
        file=head.site.file,
        line=head.site.line,
    )


def own_logit(evidence: Evidence) -> float | None:
    """Mean logit of the token that stands at the same place of the input, over the mean of all; None without tokens."""
    logits, tokens = evidence.logits, evidence.tokens
    if tokens is None:
        return None
    known = tokens < logits.shape[-1]  # a table may have a row more than the head, for padding
    own = logits.gather(-1, (tokens * known)[..., None])[..., 0] - logits.mean(-1)
    return float(own[known].mean())


def _stated(evidence: Evidence, table: str) -> Stated[float] | None:
    """What makes a tied table so large: a factor before the head that is declared beside it, as T5's, or a deviation
    that is declared and that it was drawn with. Published wide models begin so."""
    head = evidence.declared.head
    if head is not None and head.value < 1:
        return head
    stated = evidence.declared.std
    if stated is None or evidence.declared.tied is None or table not in evidence.weights.names():
        return None
    drawn = float(evidence.weights.tensor(table).std())
    return stated if threshold(NAME, "stated_std").holds(drawn / stated.value) else None


def _mend(tied: bool, width: int) -> str:
    std = f"a standard deviation of 0.02 or 1/√{width} = {width**-0.5:.3g}"
    return f"draw the matrix of the head{', which is the table too,' if tied else ''} with {std}, its bias as zeros"


RULE = Rule(
    name=NAME,
    what="The loss of an untrained model is far above ln V, that of knowing nothing.",
    why="V logits of standard deviation s have a mean −ln softmax of ln V + s²/2 while s < √(2 ln V), and "
    "about s times "
    "the largest of V normal numbers beyond. A hidden state of unit entries and a head of standard deviation "
    "1/√d_model "
    "give s = 1; a head drawn from N(0, 1) gives s = √d_model and a loss in the hundreds.",
    when="Before the first step, and only then. The first thousands of updates are spent on unlearning it, and with a "
    "tied table they tear the embeddings. Tied pre-norm models have a large logit of the input's own token, "
    "which grows "
    "like √d_model.",
    example="""
from torch import nn

from surd.audit.specimen import language_model

model = language_model()
model.head.bias = nn.Parameter(4 * model.head.weight.new_empty(model.head.out_features).normal_())
""",
    cure="""
from torch import nn

from surd.audit.specimen import language_model

model = language_model()
model.head.bias = nn.Parameter(model.head.weight.new_zeros(model.head.out_features))
""",
    sources=(
        "Press and Wolf 2017 (arXiv 1608.05859): one matrix for table and head",
        "Karpathy 2019, A Recipe for Training Neural Networks: verify the loss at the start",
        "huggingface/transformers#26441: an untied T5 head drawn from N(0, 1) starts at 110",
    ),
    needs=Needs.PROBE,
    models=Models.UNTRAINED,
    follows=(
        "double-softmax",
        "tied-init-std",
        "init-std",
        "logit-scale",
        "embedding-scale",
        "norm-gain-convention",
        "residual-path",
        "residual-growth",
        "weight-tying",
        "position-ratio",
    ),
    look=look,
)
