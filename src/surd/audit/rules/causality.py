"""A model that is meant to be causal looks at future tokens."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.calling.inputs import signature_of
from surd.measure.listeners.scored import Scored

NAME = "causality"
DECODER = "Vaswani et al. 2017, section 3.2.3: a decoder that tells the tokens of its own positions"
MOST_BEYOND = 3
"""Diagonals above the main one that a triangle drawn one off may show."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    mixing = evidence.mixing
    own = [reach for reach in mixing.reaches if reach.own]
    if not own:
        yield Skipped(reason="the output does not stand at the positions of an input")
        return
    reach = own[0]
    if not reach.finite:
        yield Skipped(reason="the gradients are not finite")
        return
    if threshold(NAME, "later").holds(reach.later):
        return
    drawn = {one.site.name: shape for one in mixing.scores if (shape := triangle(one)) is not None}
    stated = evidence.declared.causal
    if stated is not None and not stated.value:
        return
    said = _meant(evidence, drawn)
    meant = said or (DECODER if _decodes(evidence) and not mixing.filled_in else None)
    if meant is None:
        if evidence.subject.loss is None:
            yield Skipped(
                site=reach.source,
                reason="an output sees later tokens, and nothing says that it must not: no configuration, no loss of "
                "next tokens, no triangular mask",
            )
        return
    site = next((one for one in _of_the_output(evidence, mixing.scores) if one.square and _sees_later(one)), None)
    site = site or next((one for one in mixing.scores if _remembers(one) and _sees_later(one)), None)
    yield Finding(
        severity=Severity.FAULT if said else Severity.WARNING,
        site=site.site.name if site else reach.source,
        quantity="share of an output's gradient that comes from later tokens",
        measured=reach.later,
        expected=0.0,
        source=meant,
        message=f"an output depends on tokens after its own ({reach.later:.3g} of its gradient, expected 0; "
        f"{reach.earlier:.3g} from earlier ones): {_reason(site, drawn)}",
        mend="hide key j from query i where j > i: scores.masked_fill(ones(T, T).triu(1).bool(), -inf) before the "
        "softmax, or is_causal=True for the kernel, in every layer that the decoder has",
        file=site.site.file if site else "",
        line=site.site.line if site else 0,
    )


def unmasked(evidence: Evidence) -> frozenset[str]:
    """Attentions without any mask of a model that is meant to be causal and sees later tokens."""
    if not any(isinstance(one, Finding) for one in look(evidence)):
        return frozenset()
    open_ones = [one for one in _of_the_output(evidence, evidence.mixing.scores) if one.square and _sees_later(one)]
    return frozenset(one.site.name for one in open_ones if one.hidden is None)


def _meant(evidence: Evidence, drawn: dict[str, str]) -> str | None:
    """Who says that the model is causal; None where nobody does."""
    if evidence.declared.causal is not None:
        return evidence.declared.causal.by
    if evidence.mixing.next_tokens:
        return "the loss asks for the token that comes next"
    return f"the mask of {next(iter(drawn))}" if drawn else None


def _of_the_output(evidence: Evidence, scores: Sequence[Scored]) -> Sequence[Scored]:
    """Without those of an encoder, which end before the first layer that attends to it."""
    cross = {one.site.path for one in evidence.trace.attention if one.cross}
    first = next((number for number, one in enumerate(scores) if one.site.path in cross), 1)
    return scores[max(0, first - 1) :]


def _decodes(evidence: Evidence) -> bool:
    """Whether it attends to another sequence and tells tokens at its own positions, with no argument for a mask."""
    if not any(one.cross for one in evidence.trace.attention):
        return False
    if any("mask" in name for name in signature_of(evidence.module).parameters):
        return False
    try:
        return evidence.tokens is not None
    except Unobserved:
        return False


def _remembers(one: Scored) -> bool:
    """Whether its last keys are its own positions, as a triangle there says, behind what it keeps of earlier ones."""
    *_, queries, keys = (0, *one.scores.shape)
    return one.axis == one.scores.dim() - 1 and queries < keys and shape_of(one) is not None


def triangle(one: Scored) -> str | None:
    """What the mask of an attention of equal lengths looks like: a triangle, one turned over, or one drawn too wide."""
    return shape_of(one) if one.square else None


def shape_of(one: Scored) -> str | None:
    """The same of the keys at the queries' own positions, which are the last ones."""
    if one.hidden is None or one.scores.shape[-2] < 4:
        return None
    seen = _anywhere(~one.hidden)
    above, below = _corners(seen)
    if not bool(above.any()) and bool(below.any()):
        return "right"
    if not bool(below.any()) and bool(above.any()):
        return "turned over"
    for beyond in range(1, MOST_BEYOND + 1):
        if not bool(seen.triu(beyond + 1).any()) and bool(below.all()):
            return f"{beyond} too wide"
    return None


def _sees_later(one: Scored) -> bool:
    return bool(_corners(_anywhere(one.seen))[0].any())


def _anywhere(seen: Tensor) -> Tensor:
    """Over all heads and rows of the batch, of the queries' own positions."""
    return seen.reshape(-1, *seen.shape[-2:]).any(0)[:, -seen.shape[-2] :]


def _corners(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Entries above and below the diagonal."""
    places = torch.arange(seen.shape[-1], device=seen.device)
    return seen[places[:, None] < places], seen[places[:, None] > places]


def _reason(site: Scored | None, drawn: dict[str, str]) -> str:
    if site is None:
        return "the scores hide the future, so it comes in beside them"
    shape = drawn.get(site.site.name) or shape_of(site)
    if shape == "turned over":
        return f"the triangle of {site.site.name} is turned over: it hides the past"
    if shape is not None and shape != "right":
        return f"the triangle of {site.site.name} is drawn {shape} by diagonals"
    if shape == "right":
        return f"{site.site.name} has a triangle, but what it writes there ({site.fills[0]:g}) hides nothing"
    return f"{site.site.name} has no mask"


RULE = Rule(
    name=NAME,
    what="A model that is meant to be causal looks at future tokens.",
    why="What a token is to be predicted from must not contain it: the gradient of output t with respect to the inputs "
    "after t is exactly 0 through a mask; where weights of the future are divided out again, rounding is left. A model "
    "that sees the next token learns to copy it: its loss falls below ln V even on random tokens, and what it "
    "generates is noise.",
    when="From the first step of any language model or decoder. Encoders and masked language models look both ways by "
    "design: the rule speaks only where the configuration, the loss or a triangular mask says that it is causal, and "
    "as a warning of a decoder that tells the tokens at its own positions from another sequence, without any mask.",
    example="""
import torch

from surd.audit.specimen import language_model

model = language_model()
length = 64
model.visible = lambda tokens: torch.ones(length, length, dtype=torch.bool).triu()[: tokens.shape[1], : tokens.shape[1]]
""",
    cure="""
import torch

from surd.audit.specimen import language_model

model = language_model()
length = 64
model.visible = lambda tokens: torch.ones(length, length, dtype=torch.bool).tril()[: tokens.shape[1], : tokens.shape[1]]
""",
    sources=(
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.3: illegal connections are set to -inf",
        "hkproj/pytorch-transformer#19: a triangle turned over at inference",
        "huggingface/transformers#48745: decoders with an encoder's mask",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("mask-leak", "mask-fill", "softmax-axis", "head-layout"),
    look=look,
)
