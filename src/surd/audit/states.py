"""States: one model beside itself in another state: eager, in a padded batch, with a larger table."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import signature

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity
from surd.audit.parts import tables
from surd.audit.subject import Subject
from surd.audit.weights import ModuleWeights
from surd.errors import SurdError, raised
from surd.measure.calling.backends import has_other, switched
from surd.measure.calling.inputs import Inputs, are_ids, arguments, signature_of
from surd.measure.probe import unwrapped
from surd.measure.tensors import rms

MORE = 8
"""Rows that a larger table has more."""
SHORTER = 3
"""Tokens that every second row has fewer, in a padded batch."""
SAME, SAME_IN_HALF = 1e-4, 2e-2
"""Relative difference of outputs up to which a row alone and a row in a padded batch are the same, but for rounding."""
LEAK = "mask-leak"
RESIZE = "resize_token_embeddings"
"""The method that models of Hugging Face's library have for it."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A model in the state that is judged, and in the one that is right by definition."""

    mine: Evidence
    theirs: Evidence
    same_inputs: bool = True
    further: tuple[Finding, ...] = ()
    """What is seen between the two beside their scales."""
    looked: tuple[str, ...] = ()
    """Rules whose findings these would be."""


def _eager(subject: Subject) -> Beside:
    """Attention in a fused kernel, against attention written out."""
    module = _module(subject)
    if not has_other(module):
        raise SurdError(
            f"{subject.name}: has one way to compute attention alone, so nothing is compared with eager; looked for "
            "attn_implementation in its configuration, and for attributes such as flash that are yes or no"
        )
    mine = Evidence(replace(subject, name=f"{subject.name}, fused"))
    with switched(module, eager=False):
        inputs = mine.inputs
        _observe(mine)
    theirs = Evidence(replace(subject, name="eager", inputs=inputs))
    with switched(module, eager=True):
        _observe(theirs)
    return Beside(mine=mine, theirs=theirs)


def _padded(subject: Subject) -> Beside:
    """In a batch whose every second row ends in padding, against the same rows alone."""
    inputs = _named(_module(subject), Evidence(subject).inputs)
    theirs = Evidence(replace(subject, name="alone", inputs=inputs))
    found = padded_inputs(theirs.inputs, subject.declared.padding.value if subject.declared.padding else 0)
    if found is None:
        raise SurdError(
            f"{subject.name}: cannot be padded: expected named inputs, token ids and an attention_mask of their shape"
        )
    mine = Evidence(replace(subject, name=f"{subject.name}, padded", inputs=found))
    return Beside(mine=mine, theirs=theirs, same_inputs=False, further=tuple(_leaks(mine, theirs)), looked=(LEAK,))


def _resized(subject: Subject) -> Beside:
    """With more rows in the table, against as it was."""
    module = _module(subject)
    if not callable(getattr(module, RESIZE, None)):
        raise SurdError(f"{subject.name}: has no method {RESIZE}; compare the two models: --against the one before")
    theirs = Evidence(replace(subject, name="before resizing"))
    rows = _rows(theirs)
    with torch.random.fork_rng([]):
        try:
            larger = deepcopy(module)
            method = getattr(larger, RESIZE)
            # An option of Hugging Face's library, whose new rows are else drawn around the mean of the old ones.
            drawn = {"mean_resizing": False} if "mean_resizing" in signature(method).parameters else {}
            method(rows + MORE, **drawn)
        except Exception as error:
            raise SurdError(f"{subject.name}: {RESIZE}({rows + MORE}) raised {raised(error)}") from error
    held = replace(subject, weights=ModuleWeights(larger), name=f"{subject.name}, resized", inputs=theirs.inputs)
    return Beside(mine=Evidence(held), theirs=theirs)


def _rows(evidence: Evidence) -> int:
    """Of the table, as the model itself names it, or else as it is looked up first."""
    own = getattr(evidence.module, "get_input_embeddings", None)
    try:
        return own().weight.shape[0]  # pyrefly: ignore
    except Exception:  # there is no such method, or it is not written
        known = tables(evidence)
    if not known:
        raise SurdError(f"{evidence.subject.name}: no table of tokens was found that could be resized")
    return evidence.weights.shape(known[0])[0]


STATES: Mapping[str, Callable[[Subject], Beside]] = {"eager": _eager, "padded": _padded, "resized": _resized}


def _named(module: torch.nn.Module, inputs: Inputs) -> Inputs:
    """By the names of the forward's parameters, and with the mask of ones that it may be given beside ids."""
    args, kwargs = arguments(inputs)
    parameters = signature_of(module).parameters
    named = {**dict(zip(parameters, args, strict=False)), **kwargs}
    for name, x in list(named.items()):
        mask = name.replace("input_ids", "attention_mask")
        if mask != name and mask in parameters and mask not in named and isinstance(x, Tensor):
            named[mask] = torch.ones_like(x)
    return named if len(named) >= len(args) + len(kwargs) else inputs


def padded_inputs(inputs: Inputs, padding: int) -> dict[str, object] | None:
    """The same with the ends of every second row hidden; None where ids or their mask are not known by name."""
    if not isinstance(inputs, Mapping):
        return None
    found = dict(inputs)
    changed = False
    for name, mask in inputs.items():
        ids = _beside(inputs, name)
        if ids is None or not isinstance(mask, Tensor):
            continue
        hidden = torch.zeros(mask.shape, dtype=torch.bool, device=mask.device)
        hidden[1::2, -SHORTER:] = True
        found[name] = mask.masked_fill(hidden, 0)
        found[ids] = found[ids].masked_fill(hidden, padding)
        changed = True
    return found if changed else None


def _beside(inputs: Mapping[str, object], mask: str) -> str | None:
    """The name of the ids that a mask of ones belongs to."""
    value = inputs[mask]
    if not mask.endswith("attention_mask") or not isinstance(value, Tensor) or not bool((value == 1).all()):
        return None
    name = mask.replace("attention_mask", "input_ids")
    ids = inputs.get(name)
    return name if isinstance(ids, Tensor) and ids.shape == value.shape and are_ids(ids) else None


def _leaks(mine: Evidence, theirs: Evidence) -> Sequence[Finding]:
    """A row of the padded batch answers at its real positions as it does alone."""
    kept = mine.inputs
    assert isinstance(kept, Mapping), "padded by name"
    length = next(x.shape[1] for name, x in kept.items() if name.endswith("attention_mask")) - SHORTER
    alone = {
        name: x[1:2, :length] if isinstance(x, Tensor) and x.dim() > 1 and x.shape[1] == length + SHORTER else x
        for name, x in kept.items()
    }
    together, single = mine.outputs, theirs.run(alone)
    for one, other in zip(together, single, strict=False):
        if one.is_floating_point() and one.dim() == 3 and other.shape[:2] == (1, length):
            difference = rms(one[1:2, :length].float() - other.float()) / max(rms(other.float()), 1e-30)
            exact = mine.dtype in (torch.float32, torch.float64)
            if difference > (SAME if exact else SAME_IN_HALF):
                return [_leak(difference, length)]
            return []
    return []


def _leak(difference: float, length: int) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site="the model",
        quantity="difference of a row's outputs in a padded batch",
        measured=difference,
        expected=0.0,
        source="alone",
        message=f"the outputs of a row of {length} tokens change by {difference:.3g} of their size when {SHORTER} "
        "hidden tokens follow it",
        mend="hide the keys of padding from every attention, and take positions from the real tokens alone",
        rule=LEAK,
        sites=("the model",),
    )


def _observe(evidence: Evidence) -> None:
    """Now, while a state lasts: what is observed stays with the evidence."""
    _ = evidence.trace, evidence.outputs


def _module(subject: Subject) -> torch.nn.Module:
    if subject.module is None:
        raise SurdError(f"{subject.name}: only a file of weights was given: it cannot be run in another state")
    return unwrapped(subject.module)
