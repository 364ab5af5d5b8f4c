"""The probe: one forward of any module, seen from outside, and every scale that can be read from it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.calling.building import build_inputs
from surd.measure.calling.inputs import Inputs, are_ids, replaced
from surd.measure.calling.restore import Keep, preserved
from surd.measure.reading.bare import read_bare
from surd.measure.reading.chains import read_chains
from surd.measure.reading.factors import read_attention
from surd.measure.reading.flow import read_flows, read_positions
from surd.measure.reading.gradients import read_gradients
from surd.measure.reading.multipliers import read_embeddings, read_features, read_head, read_ties
from surd.measure.reading.unseen import read_unseen
from surd.measure.reading.used import read_uses
from surd.measure.sites import Attention, Embedding, Head, Reading, Trace, Unseen, numbered
from surd.measure.trace.calls import Size
from surd.measure.trace.forward import Forward, Loss, forward, training_forward
from surd.measure.trace.notes import Notes
from surd.measure.trace.tokens import tells_tokens

NO_WAY = "no gradient leads from the loss back into the model"


def probe(model: nn.Module, inputs: Inputs | None = None, loss: Loss | None = None) -> Trace:
    """Reads the scales of a module, which is left exactly as it was, whatever happens.

    `inputs` are the arguments of one call: a tensor, a tuple, or a dict of named ones; without them they are built from
    the signature. Several rows of one length see most; with one row, other rows cannot be told to leak. `loss` takes
    what the model returns to one number, whose gradients are read in a forward of their own; what it calls is part of
    the model, such as a head that the forward leaves out.
    """
    model = unwrapped(model)
    _refuse_numberless(model)
    given = build_inputs(model) if inputs is None else inputs
    try:
        return _trace(model, given, loss)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
    # Written for use without gradients: it changes what a gradient needs. Copies of that are kept now.
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        return _trace(model, given, loss)


def _trace(model: nn.Module, given: Inputs, loss: Loss | None) -> Trace:
    with preserved(model, tapped=True) as keep:
        seen = forward(model, keep, given, loss)
        notes, scales = seen.notes, _read(seen)
        flows = read_flows(notes, seen.outputs)
        readings, pathless = [Reading(site=size.site, rms=size.seen.rms) for size in scales.sizes], []
        if loss is not None:
            readings, pathless = _with_gradients(model, keep, given, loss, readings)
        dark = read_unseen(model, notes, scales.attention, flows)
        return Trace(
            attention=tuple(scales.attention),
            embeddings=tuple(scales.embeddings),
            positions=_positions(model, keep, given, notes) if scales.attention and scales.embeddings else None,
            head=scales.head,
            ties=tuple(read_ties(notes, scales.head, scales.head_weight)),
            flows=tuple(flows),
            readings=tuple(readings),
            unseen=(*seen.unseen, *scales.unseen, *dark, *pathless),
            features=tuple(read_features(notes)),
            bare=tuple(read_bare(notes)),
            chains=tuple(read_chains(notes)),
            uses=tuple(read_uses(notes, scales.head_weight)),
        )


def _refuse_numberless(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SurdError(f"{name} belongs to a lazy layer without weights; expected a model that has run once")
        if parameter.is_meta:
            raise SurdError(f"{name} is on the meta device, where there are no numbers to measure")
        if parameter.is_inference():
            raise SurdError(f"{name} was made under torch.inference_mode, where no gradient can ever be read")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside compilation and data parallelism, whose threads and graphs would hide it."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


@dataclass(frozen=True, kw_only=True)
class _Scales:
    attention: list[Attention]
    embeddings: list[Embedding]
    head: Head | None
    head_weight: Tensor | None
    sizes: list[Size]
    """In the order of the forward."""
    unseen: list[Unseen]


def _read(seen: Forward) -> _Scales:
    """The scales that one forward shows."""
    notes = seen.notes
    attention, parts, blind = read_attention(notes)
    embeddings, rows, lost = read_embeddings(notes)
    head, weight, ends, headless = read_head(notes, seen.outputs)
    sites = numbered([size.site for size in notes.sizes])
    others = [replace(size, site=site) for size, site in zip(notes.sizes, sites, strict=True)]
    return _Scales(
        attention=attention,
        embeddings=embeddings,
        head=head,
        head_weight=weight,
        sizes=sorted([*rows, *parts, *others, *ends], key=lambda size: size.seen.turn),
        unseen=[*blind, *lost, *headless],
    )


def _with_gradients(
    model: nn.Module, keep: Keep, given: Inputs, loss: Loss, readings: list[Reading]
) -> tuple[list[Reading], list[Unseen]]:
    """The readings with the gradients of a second forward."""
    again = training_forward(model, keep, given, loss)
    assert again.loss is not None, "a loss was given"
    found = {reading.site.name: reading.gradient for reading in read_gradients(again.loss, _read(again).sizes)}
    unseen = [] if again.loss.requires_grad else [Unseen(what="gradients", reason=NO_WAY)]
    return [replace(reading, gradient=found.get(reading.site.name)) for reading in readings], unseen


def _positions(model: nn.Module, keep: Keep, given: Inputs, notes: Notes) -> str | None:
    """What the model does to one token that stands everywhere; the look-ups come in the same order again."""

    def constant(x: Tensor) -> Tensor:
        return torch.full_like(x, int(x.flatten()[0])) if are_ids(x) and tells_tokens(x.long(), read) else x

    read = [lookup.ids for lookup in notes.lookups if lookup.token]
    number = next(number for number, lookup in enumerate(notes.lookups) if lookup.token)
    again = forward(model, keep, replaced(given, constant), None, values=True).notes
    return read_positions(again, again.lookups[number])
