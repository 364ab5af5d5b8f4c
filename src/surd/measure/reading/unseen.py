"""Unseen: where the probe could not look, and why. What was not measured is never passed over in silence."""

from collections.abc import Sequence

import torch
from torch import nn

from surd.measure.reading.factors import products_behind
from surd.measure.reading.flow import length
from surd.measure.sites import Attention, Flow, Role, Unseen
from surd.measure.trace.calls import Softmax
from surd.measure.trace.graph import walk_back
from surd.measure.trace.naming import display_path
from surd.measure.trace.notes import Notes


def read_unseen(model: nn.Module, notes: Notes, attention: Sequence[Attention], flows: Sequence[Flow]) -> list[Unseen]:
    """Parts of the model that stayed dark, besides sites that were seen and could not be judged."""
    found = [
        Unseen(what=display_path(path), reason="a scripted module: nothing inside it can be seen")
        for path, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    found += [
        Unseen(what=where.path, reason=f"{name} has no gradient: gains begin behind it") for where, name in notes.opaque
    ]
    found += _without_product(notes)
    if attention:
        return found + _hybrid(model, attention)
    hint = _square_product(notes)
    own = [flow for flow in flows if flow.own] or flows
    mixes = any(flow.sees_earlier or flow.sees_later for flow in own)
    if hint is not None:
        reason = f"a product of all positions with all ({hint}), but {_reader(notes)}"
    elif not flows:
        reason = "no attention was called, and whether positions mix could not be seen"
    elif mixes:
        reason = "positions mix, but by no softmax attention and no kernel that takes query, key and value"
    else:
        reason = "positions do not mix: not a Transformer, a part of one, or an operation without a gradient"
    return [*found, Unseen(what="attention", reason=reason)]


def _without_product(notes: Notes) -> list[Unseen]:
    """Softmaxes over the positions whose input no product of activations made: additive scores, perhaps."""
    lengths = {length(notes, lookup) for lookup in notes.lookups if lookup.token}
    return [
        Unseen(
            what=f"{call.where.path}:{Role.SCORE}",
            reason=f"a softmax over positions ({call.where.file}:{call.where.line}) of no product of activations",
        )
        for call in notes.attention
        if isinstance(call, Softmax) and call.scores.place is not None
        if call.values.shape[call.axis] in lengths and not products_behind(notes, call)
    ]


def _reader(notes: Notes) -> str:
    """What reads such a product in the end."""
    stops = {node: product.place for node, product in notes.products.items()} | notes.origins.places
    for call in notes.attention:
        if isinstance(call, Softmax) and call.scores.place is not None:
            met, _ = walk_back([call.scores.place.node], stops)
            if any(node in notes.products and not notes.products[node].mixes for node in met):
                here = f"{call.where.file}:{call.where.line}"
                return f"a layer stands between it and the softmax ({here}): no one number is their factor"
    return "no softmax that torch knows reads it"


def _square_product(notes: Notes) -> str | None:
    """File and line of a product that compares all positions with all, if there is one."""
    lengths = {length(notes, lookup) for lookup in notes.lookups if lookup.token}
    lengths |= {
        place.shape[1] for place in map(notes.origins.places.get, notes.inputs) if place and len(place.shape) == 3
    }
    for product in notes.products.values():
        queries, keys = product.shape[-2:]
        if queries == keys and keys in lengths and not product.mixes:
            return f"{product.where.file}:{product.where.line}"
    return None


def _hybrid(model: nn.Module, attention: Sequence[Attention]) -> list[Unseen]:
    """Stacks of which only some blocks attend."""
    paths = [f"{one.site.path}." for one in attention]
    found = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1 and len({type(block) for block in module}) == 1:
            stem = display_path(path)
            attending = [any(p.startswith(f"{stem}.{number}.") for p in paths) for number in range(len(module))]
            if any(attending) and not all(attending):
                reason = f"attention in {sum(attending)} of {len(module)} blocks; the others have none"
                found.append(Unseen(what=stem, reason=reason))
    return found
