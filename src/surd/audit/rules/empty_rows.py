"""A row without any visible key becomes NaN, in the outputs or in the gradients alone."""

from collections.abc import Iterator

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.errors import SurdError, raised
from surd.measure.calling.inputs import Inputs
from surd.measure.listeners.scored import Scored
from surd.measure.sites import Site
from surd.measure.trials.padded import gradients

NAME = "empty-rows"
MEND = "hide with torch.finfo(scores.dtype).min / 2, not -inf, so that an empty row is uniform; or let every row see "
MEND += "itself; or zero the weights where no key is visible, before the values are mixed, not only afterwards"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    given = [one for one in evidence.mixing.scores if one.empty]
    whole = all(bool(x.isfinite().all()) for x in evidence.mixing.outputs if x.is_floating_point())
    if given:
        found = [*_found(evidence, evidence.inputs, None, given[0].site, _of_the_batch(given[0]))]
        yield from found
        if found:
            return
    if not whole:
        yield Skipped(reason="outputs are not finite, and no row of scores without a visible key was seen")
        return
    told = evidence.padded.told
    rows, length = evidence.padded.pads.shape
    pads = torch.zeros(rows, length, dtype=torch.bool)
    pads[0, : max(1, length // 4)] = True
    pads[1] = True
    site = next((one.site for one in evidence.padded.scores if one.hidden is not None), None)
    yield from _found(evidence, told.inputs(pads), pads, site, "")


def _found(evidence: Evidence, inputs: Inputs, pads: Tensor | None, site: Site | None, when: str) -> Iterator[Finding]:
    """Outputs that are not finite, or else gradients."""
    try:
        output, broken = gradients(evidence.module, inputs, None if pads is None else ~pads)
    except (SurdError, RuntimeError) as error:
        told = "" if pads is None else "with a sample that is all padding "
        raise Unobserved(f"{told}the forward raised {raised(error)}") from error
    bad = ~output.isfinite()
    place = site.name if site else type(evidence.module).__name__
    if bool(bad.any()):
        share = float(bad.double().mean())
        what = when if pads is None else _where(bad, pads)
        yield Finding(
            severity=Severity.FAULT,
            site=place,
            quantity="share of the outputs that are not finite",
            measured=share,
            expected=0.0,
            source="softmax of -inf alone is 0 / 0",
            message=f"{int(bad.sum())} of {bad.numel()} outputs ({share:.3g}) are not finite, expected 0, when {what}",
            mend=MEND,
            file=site.file if site else "",
            line=site.line if site else 0,
        )
    elif broken:
        first = next(iter(broken))
        yield Finding(
            severity=Severity.FAULT,
            site=place,
            quantity="entries of gradients that are not finite",
            measured=sum(broken.values()),
            expected=0,
            source="0 · NaN is NaN: outputs that are cut away still send a gradient back",
            message=f"{sum(broken.values())} entries of the gradients of {len(broken)} weights ({first} first) are not "
            "finite, expected 0, though all outputs are: rows without a visible key are repaired after the softmax",
            mend=MEND,
            file=site.file if site else "",
            line=site.line if site else 0,
        )


def _of_the_batch(one: Scored) -> str:
    rows = one.scores.numel() // one.scores.shape[one.axis]
    return f"{one.empty} of {rows} rows of scores see no key, as padding stands in the batch that was given"


def _where(bad: Tensor, pads: Tensor) -> str:
    """Which of the padded rows they are."""
    if bad.dim() < 2 or bad.shape[:2] != pads.shape:
        return "a sample is all padding and another begins with padding"
    empty, left = bool(bad[1].any()), bool(bad[0].any())
    told = ["a sample is all padding"] * empty + ["a sample begins with padding"] * left
    return " and ".join(told) or "another sample of the batch is padded"


RULE = Rule(
    name=NAME,
    what="A row without any visible key becomes NaN, in the outputs or in the gradients alone.",
    why="softmax(-inf, -inf, …) is 0 / 0. One such row makes every output NaN that reads it in the next layer. Setting "
    "it to 0 afterwards mends the outputs and not the gradients, as 0 · NaN is NaN: the loss is finite, and the step "
    "after it destroys all weights.",
    when="With a sample that is all padding, with padding on the left of a causal model, with local windows inside "
    "padding. torch's fused attention returns 0 there in new versions only; a softmax written out returns NaN.",
    example="""
import torch

from surd.audit.specimen import Attention, encoder


class Infinite(Attention):
    def masked(self, scores, visible):
        return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Infinite
""",
    cure="""
import torch

from surd.audit.specimen import Attention, encoder


class Finite(Attention):
    def masked(self, scores, visible):
        return scores if visible is None else scores.masked_fill(~visible, torch.finfo(scores.dtype).min / 2)


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Finite
""",
    sources=(
        "pytorch/pytorch#24816: a sample of padding alone",
        "pytorch/pytorch#41508: NaN in the gradients of rows that are cut away",
        "huggingface/transformers#32390: NaN at padded tokens",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("mask-fill",),
    finite=False,
    look=look,
)
