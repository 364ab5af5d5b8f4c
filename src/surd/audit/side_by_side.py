"""Side by side: two subjects called with the same inputs, as far as both can read them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Unobserved
from surd.audit.subject import Subject
from surd.measure.calling.inputs import Inputs, are_ids, replaced, tensors


def side_by_side(mine: Subject, theirs: Subject, static: bool = False) -> tuple[Evidence, Evidence, bool]:
    """Evidence of both, and whether it is of the same inputs. Losses stand aside: they are not compared."""
    called = theirs.name if theirs.name != mine.name else f"the other {theirs.name}"
    mine, theirs = replace(mine, loss=None), replace(theirs, loss=None, name=called)
    if static or mine.module is None or theirs.module is None:
        return Evidence(mine), Evidence(theirs), False
    try:
        first, second = Evidence(mine).inputs, Evidence(theirs).inputs
    except Unobserved:
        return Evidence(mine), Evidence(theirs), False
    shared = same_inputs(first, second)
    if shared is not None:
        first, second = shared
    return Evidence(replace(mine, inputs=first)), Evidence(replace(theirs, inputs=second)), shared is not None


def same_inputs(first: Inputs, second: Inputs) -> tuple[Inputs, Inputs] | None:
    """The arguments of both calls with the same numbers in them, each in its own form; None where they do not match.

    Ids are those of the smaller vocabulary. Masks, and whatever else has one value everywhere, stay as they are.
    """
    mine, theirs = _content(first), _content(second)
    if len(mine) != len(theirs) or not mine:
        return None
    chosen: dict[int, Tensor] = {}
    for one, other in zip(mine, theirs, strict=True):
        if one.shape != other.shape or are_ids(one) != are_ids(other):
            return None
        common = other if are_ids(one) and int(other.max()) < int(one.max()) else one
        chosen |= {id(one): common, id(other): common}

    def change(x: Tensor) -> Tensor:
        return chosen[id(x)].to(device=x.device, dtype=x.dtype) if id(x) in chosen else x

    return _replaced(first, change), _replaced(second, change)


def _replaced(inputs: Inputs, change: Any) -> Inputs:
    return replaced(inputs if isinstance(inputs, Tensor | dict | tuple | list) else dict(inputs), change)


def _content(inputs: Inputs) -> Sequence[Tensor]:
    """Tensors that say something: with several values, or with several axes of numbers."""
    found = [x for x in tensors(inputs) if x.dim() > 0 and x.numel() > 1 and x.dtype != torch.bool]
    return [x for x in found if bool((x != x.flatten()[0]).any())]
