"""The probe: one forward of any module, seen from outside, and every scale that can be read from it."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.factors import read_attention
from surd.measure.flow import read_flows, read_positions
from surd.measure.inputs import Inputs, arguments, build_inputs, replaced, tensors
from surd.measure.multipliers import read_embeddings, read_head, read_ties
from surd.measure.notes import Notes, tells_tokens
from surd.measure.restore import Keep, preserved
from surd.measure.sites import Reading, Site, Trace, Unseen, numbered
from surd.measure.tap import Tap
from surd.measure.unseen import read_unseen

NO_GRAD = "the forward does not run without its own torch.no_grad: what stands inside could not be seen"


def probe(model: nn.Module, inputs: Inputs | None = None) -> Trace:
    """Reads the scales of a module, which is left exactly as it was, whatever happens.

    `inputs` are the arguments of one call: a tensor, a tuple, or a dict of named ones; without them they are built from
    the signature. Several rows of one length see most; with one row, other rows cannot be told to leak.
    """
    model = unwrapped(model)
    if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in model.parameters()):
        raise SurdError("the model has lazy layers without weights; expected a model that has run once")
    given = build_inputs(model) if inputs is None else inputs
    with preserved(model) as keep:
        notes, outputs, unseen = _forward(model, keep, given)
        attention, sizes, blind = read_attention(notes)
        embeddings, rows, lost = read_embeddings(notes)
        head, weight, ends, headless = read_head(notes, outputs)
        flows = read_flows(notes, outputs)
        unseen += [*blind, *lost, *headless, *read_unseen(model, notes, attention, flows)]
        return Trace(
            attention=tuple(attention),
            embeddings=tuple(embeddings),
            positions=_positions(model, keep, given, notes) if attention and embeddings else None,
            head=head,
            ties=tuple(read_ties(notes, head, weight)),
            flows=tuple(flows),
            readings=(*rows, *sizes, *_sizes(notes), *ends),
            unseen=tuple(unseen),
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside compilation and data parallelism, whose threads and graphs would hide it."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def _forward(
    model: nn.Module, keep: Keep, given: Inputs, values: bool = False
) -> tuple[Notes, list[Tensor], list[Unseen]]:
    """One forward under the tap; a second try lets `torch.no_grad` be, for a forward that cannot do without."""
    failure: Exception | None = None
    for suspend in (True, False):
        integers = [x for x in tensors(given) if not x.is_floating_point()]
        tap = Tap(model, keep, integers, values=values, suspend=suspend)
        args, kwargs = arguments(given)
        args = tuple(_admitted(tap.notes, f"input {number}", value) for number, value in enumerate(args, 1))
        kwargs = {name: _admitted(tap.notes, name, value) for name, value in kwargs.items()}
        try:
            with tap.installed():
                output = model(*args, **kwargs)
        except Exception as error:
            failure = failure or error
            continue
        return tap.notes, list(tensors(output)), [] if suspend else [Unseen(what=type(model).__name__, reason=NO_GRAD)]
    found = ", ".join(f"{name} {_shape(value)}" for name, value in _named(given))
    raise SurdError(
        f"the forward of {type(model).__name__} raised {type(failure).__name__}: {failure}. It takes "
        f"{inspect.signature(model.forward)} and was given {found}. Pass `inputs`, a dict of its arguments."
    ) from failure


def _admitted(notes: Notes, name: str, value: Any) -> Any:
    """Copies of an argument's tensors; numbers, unless they are a mask, become sources of the graph."""

    def admit(x: Tensor) -> Tensor:
        copy = x.detach().clone()
        if copy.is_floating_point() and "mask" not in name:
            copy = copy.requires_grad_().clone()  # no leaf: the forward may change it in place
            notes.admit(name, copy)
        return copy

    return replaced(value, admit)


def _positions(model: nn.Module, keep: Keep, given: Inputs, notes: Notes) -> str | None:
    """What the model does to one token that stands everywhere; the look-ups come in the same order again."""

    def constant(x: Tensor) -> Tensor:
        integers = x.dtype in (torch.int32, torch.int64)
        return torch.full_like(x, int(x.flatten()[0])) if integers and tells_tokens(x, read) else x

    read = [lookup.ids for lookup in notes.lookups if lookup.token]
    number = next(number for number, lookup in enumerate(notes.lookups) if lookup.token)
    again, _, _ = _forward(model, keep, replaced(given, constant), values=True)
    return read_positions(again, again.lookups[number])


def _sizes(notes: Notes) -> list[Reading]:
    sites = [Site(path=x.where.path, role=x.role, file=x.where.file, line=x.where.line) for x in notes.sizes]
    return [Reading(site=site, rms=size.rms) for site, size in zip(numbered(sites), notes.sizes, strict=True)]


def _named(given: Inputs) -> list[tuple[str, Any]]:
    args, kwargs = arguments(given)
    return [*((f"input {number}", value) for number, value in enumerate(args, 1)), *kwargs.items()]


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
