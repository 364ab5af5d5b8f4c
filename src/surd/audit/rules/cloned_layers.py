"""Layers start as copies of one another: a stack made by copying one layer."""

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity
from surd.audit.parts import gap, sample, std
from surd.audit.rule import Models, Needs, Rule

NAME = "cloned-layers"
FEW = 1024


def look(evidence: Evidence) -> Iterator[Finding]:
    weights = evidence.weights
    groups: dict[tuple[str, torch.Size], list[tuple[str, Tensor]]] = {}
    for name, shape in weights.matrices():
        numbers = [found.start() for found in re.finditer(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", name)]
        if not numbers or min(shape) < 4:
            continue
        few = sample(weights.top(name), FEW)
        if not _drawn(few):
            continue
        alike = groups.setdefault((re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "*", name), shape), [])
        alike.append((name, few))
    copies: dict[str, list[str]] = {}
    for members in groups.values():
        for number, (name, few) in enumerate(members):
            for before, earlier in members[:number]:
                if torch.equal(few, earlier):
                    if _copied(evidence, before, name):
                        copies.setdefault(before, [before]).append(name)
                    break
    if copies and not all(_is_head(evidence, names) for names in copies.values()):
        first, names = next(iter(copies.items()))
        yield Finding(
            severity=Severity.FAULT,
            site=first,
            quantity="rms of W_l − W_m",
            measured=0.0,
            expected=std(weights.tensor(first)) * 2**0.5,
            source="two independent draws of standard deviation σ differ by √2 σ",
            message=f"{len(names)} layers have one and the same {re.split(r'[0-9]+[.]', first)[-1]}, bit by bit, "
            f"without sharing it ({sum(map(len, copies.values()))} matrices in all): they were copied, not drawn",
            mend="initialise each layer after copying (call reset_parameters, or an init function, on every layer)",
            sites=tuple(name for group in copies.values() for name in group),
        )


def _is_head(evidence: Evidence, copies: list[str]) -> bool:
    """Whether copies stand beside each other, as further heads that begin as the head does on purpose.

    A layer of a stack gives back as many numbers as it reads: some matrix of it is square, or there are two.
    """
    weights, shape = evidence.weights, evidence.weights.shape(copies[0])
    others = [name for name, other in weights.matrices() if other == shape and name not in copies]
    return shape[0] != shape[1] and any(gap(weights, copies[0], name) == 0 for name in others)


def _drawn(x: Tensor) -> bool:
    """Whether numbers look random: different ones, around zero. Tables of constants may well be equal in all layers."""
    return len(x.unique()) > 0.5 * len(x) and float(x.mean().abs()) < 0.5 * float(x.std())


def _copied(evidence: Evidence, first: str, second: str) -> bool:
    weights = evidence.weights
    return not weights.same(first, second) and gap(weights, first, second) == 0


RULE = Rule(
    name=NAME,
    what="Layers of an untrained stack are equal to the last bit, though they are not shared.",
    why="A stack that is made by copying one layer, as torch's TransformerEncoder does, draws once and copies: "
    "max |W_l − W_m| = 0 where independent draws differ by √2 σ. All layers begin with the same heads, and the "
    "gradients of neighbours are alike, so depth starts out as repetition.",
    when="At the start; training breaks the symmetry, as the stream differs from layer to layer, but late. A layer "
    "that is one parameter in all places (ALBERT) is shared on purpose and not told, and neither are further heads "
    "that begin as copies of the head (Medusa).",
    example="""
import copy

from torch import nn

from surd.audit.specimen import language_model

model = language_model()
model.blocks = nn.ModuleList(copy.deepcopy(model.blocks[0]) for _ in range(2))
""",
    cure="""
import copy

from torch import nn

from surd.audit.specimen import language_model

model = language_model()
again = language_model(seed=1)
model.blocks = nn.ModuleList([copy.deepcopy(model.blocks[0]), copy.deepcopy(again.blocks[0])])
""",
    sources=(
        "pytorch/pytorch#72253: TransformerEncoder copies one layer",
        "Glorot & Bengio 2010: each matrix is drawn by itself",
    ),
    needs=Needs.STATIC,
    models=Models.UNTRAINED,
    follows=(),
    look=look,
)
