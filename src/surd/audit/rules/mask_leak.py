"""Probability stays on keys that a mask is meant to hide."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.rules.causality import unmasked
from surd.audit.thresholds import threshold
from surd.measure.listeners.scored import Scored
from surd.measure.trials.padded import Padded, at_padding, by_row, turned_over

NAME = "mask-leak"
TURN = "turn the mask over: key_padding_mask of torch is True where a key is hidden, a boolean attn_mask of"
TURN += " scaled_dot_product_attention where it is seen"
MEND = "scores.masked_fill(hidden, -inf) before the softmax, or torch.finfo(scores.dtype).min / 2, never a small number"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    told = [*_meant(evidence.mixing.scores)]
    yield from _whole(told)
    try:
        padded = evidence.padded
    except Unobserved as reason:
        if not any(one.hidden is not None for one in evidence.mixing.scores):
            yield Skipped(reason=str(reason))
        return
    if not told:
        found = [*_meant(padded.scores)] or [*_turned(padded)] or [*_by_content(padded, unmasked(evidence))]
        found = found or [*_by_rows(padded)]
        yield from _whole(found)
        if not found:
            yield from _past_attention(padded)


def _whole(found: Sequence[Finding]) -> Iterator[Finding]:
    return as_one(found, grave=lambda finding: float(finding.measured))


def _meant(scores: Sequence[Scored]) -> Iterator[Finding]:
    """Of keys that a mask was heard to hide."""
    for one in scores:
        found = None if one.hidden is None else one.mass(one.hidden)
        if found is not None and not threshold(NAME, "mass").holds(found[0]):
            fills = ", ".join(sorted({f"{fill:g}" for fill in one.fills}))
            yield _finding(one, *found, f"the mask writes or adds {fills} there, which hides nothing")


def _by_content(padded: Padded, elsewhere: frozenset[str]) -> Iterator[Finding]:
    """Of padding, where what it holds reaches outputs at real positions; what lacks a causal mask is told elsewhere."""
    if padded.change is None or threshold(NAME, "change").holds(padded.change):
        return
    masked = any(by_row(one, len(padded.pads)) for one in padded.scores)
    name = next(iter(padded.told.masks), "")
    if not masked and padded.heeded and "attention" not in name and "pad" not in name:
        return  # no mask reaches the scores: it may be meant for something else
    for one, where in _of_the_source(padded):
        if (one.hidden is None and one.site.name in elsewhere) or (not masked and _looks_back(one)):
            continue
        found = one.mass(where)
        if found is not None and not threshold(NAME, "mass").holds(found[0]):
            where_at = "of the padded row" if padded.pooled else "at real positions"
            reason = f"outputs {where_at} change by {padded.change:.2g} with what padding holds"
            if not masked:
                reason += f", and {name} " + ("reaches no scores" if padded.heeded else "changes nothing")
            yield _finding(one, *found, reason)


def _turned(padded: Padded) -> Iterator[Finding]:
    """Of padding, where it alone is seen."""
    for one in padded.scores:
        where = at_padding(one, padded.pads)
        if where is not None and turned_over(one, padded.pads):
            rows = where.any(one.axis)
            weights = torch.softmax(one.scores.double(), one.axis).nan_to_num()
            mass = float(weights.where(where, 0.0).sum(one.axis)[rows].mean())
            share = float(where.double().mean(one.axis)[rows].mean())
            if not threshold(NAME, "mass").holds(mass):
                yield _finding(
                    one, mass, share, "the mask is turned over: real keys are hidden, and padding is seen", TURN
                )


def _past_attention(padded: Padded) -> Iterator[Finding]:
    """Of padding that every attention hides, and that one output for the whole row is made from all the same."""
    hides = any(by_row(one, len(padded.pads)) for one in padded.scores)
    if padded.pooled and hides and padded.change and not threshold(NAME, "change").holds(padded.change):
        yield Finding(
            severity=Severity.NOTE,
            site="the model",
            quantity="relative change of a pooled output when padding holds something else",
            measured=padded.change,
            expected=0.0,
            high=threshold(NAME, "change").high,
            source=threshold(NAME, "change").source,
            message=f"the output of a padded row changes by {padded.change:.2g} with what padding holds, though every "
            "attention hides it",
            mend="where the output is a mean or a maximum over positions, take it over the real ones alone",
        )


def _of_the_source(padded: Padded) -> list[tuple[Scored, Tensor]]:
    """Attentions whose keys may be the padded ones, and where these stand."""
    places = [(one, at_padding(one, padded.pads)) for one in padded.scores]
    known = [(one, where) for one, where in places if where is not None]
    # A causal attention is a decoder's to itself, where the padding is not, if another one sees the padding unmasked.
    others = [(one, where) for one, where in known if not _looks_back(one)]
    return others if any(bool((one.seen & where).any()) for one, where in others) else known


def _looks_back(one: Scored) -> bool:
    """Whether every key that is later than its query is hidden."""
    return one.square and not bool(one.seen.triu(1).any())


def _by_rows(padded: Padded) -> Iterator[Finding]:
    """Masks that reach other samples than their own."""
    if padded.others is None or threshold(NAME, "change").holds(padded.others):
        return
    masked = [one for one in padded.scores if one.hidden is not None]
    if masked:
        yield Finding(
            severity=Severity.FAULT,
            site=masked[0].site.name,
            quantity="relative change of samples without padding when another one is padded",
            measured=padded.others,
            expected=0.0,
            source="definition of a batch: samples are computed beside each other",
            message=f"samples without padding change by {padded.others:.3g} when another sample is padded, expected 0: "
            "a mask is applied to other samples than its own",
            mend="bring the mask into the order of the scores: mask[:, None, None, :] for (batch, heads, query, key);"
            " where heads stand before the batch, tile it, and where behind, repeat it",
            file=masked[0].site.file,
            line=masked[0].site.line,
        )


def _finding(one: Scored, mass: float, share: float, reason: str, mend: str = MEND) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=one.site.name,
        quantity="mean probability on hidden keys",
        measured=mass,
        expected=0.0,
        high=threshold(NAME, "mass").high,
        source=threshold(NAME, "mass").source,
        message=f"hidden keys, {share:.3g} of all, get {mass:.3g} of the weights, expected less than 1e-6: {reason}",
        mend=mend,
        file=one.site.file,
        line=one.site.line,
    )


RULE = Rule(
    name=NAME,
    what="Probability stays on keys that a mask is meant to hide.",
    why="A key whose score is s below the others gets e^-s of their weight. Written 1e-9 or -1e-12 for a meant -1e9, "
    "a mask makes a score of 0: about the mean of all, so hidden keys get their share of the number of keys, 4 of 10 "
    "about 0.4. The right fill leaves exactly 0.",
    when="In every padded batch and every causal model. Quality suffers little at first, and outputs depend on how "
    "much padding the neighbours brought.",
    example="""
import torch

from surd.audit.specimen import Attention, encoder


class Tiny(Attention):
    def masked(self, scores, visible):
        return scores if visible is None else scores.masked_fill(~visible, 1e-9)


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Tiny
""",
    cure="""
import torch

from surd.audit.specimen import Attention, encoder


class Large(Attention):
    def masked(self, scores, visible):
        return scores if visible is None else scores.masked_fill(~visible, -1e9)


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Large
""",
    sources=(
        "awslabs/gluonts#1401: 1e-9 for -1e9",
        "hyunwoongko/transformer#10: minus a small epsilon",
        "lsdefine/attention-is-all-you-need-keras#36: masks of other samples",
    ),
    needs=Needs.COMPARISON,
    models=Models.BOTH,
    follows=("mask-fill", "softmax-axis", "head-layout", "batch-isolation"),
    look=look,
)
