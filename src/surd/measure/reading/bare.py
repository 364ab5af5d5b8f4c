"""Bare: who reads a residual stream as it is, in a stack whose other layers read norms of it."""

from statistics import median

from torch.autograd.graph import Node

from surd.measure.sites import Bare, Role
from surd.measure.trace.calls import Projection
from surd.measure.trace.graph import Stops, walk_back
from surd.measure.trace.notes import Notes

OTHERS = 2
"""Layers that must read norms before one that does not is odd."""


def read_bare(notes: Notes) -> list[Bare]:
    """In the order of the forward; none in a model that has no such norms, or only norms after its sums."""
    places = [size.seen.place for size in notes.sizes if size.site.role is Role.STREAM]
    streams = {place.node: place for place in places if place is not None}
    stops = {**notes.norms, **streams, **{node: one.place for node, one in notes.projections.items()}}
    begins = {lookup.place.node: lookup.place for lookup in notes.lookups}
    streams = {node: place for node, place in streams.items() if _joins(node, {**stops, **begins})}
    normed, bare = [], []
    for projection in notes.projections.values():
        if projection.read.place is None:
            continue
        met = set(walk_back([projection.read.place.node], stops)[0])
        if met and met <= notes.norms.keys():
            if any(_of_stream(notes, node, stops, streams) for node in met):
                normed.append(projection)
        elif met and met <= streams.keys() and not _convolves(projection):
            bare.append(projection)
    if len(normed) < max(OTHERS, len(bare)):
        return []
    usual = median(one.read.rms for one in normed)
    return [
        Bare(path=one.where.path, file=one.where.file, line=one.where.line, rms=one.read.rms, usual=usual)
        for one in bare
    ]


def _convolves(projection: Projection) -> bool:
    """Stacks of convolutions have their norms behind each layer, and not before."""
    return projection.weight is not None and projection.weight.dim() > 2


def _joins(node: Node, stops: Stops) -> bool:
    """Whether a sum joins a branch with what goes past it, and is not a formula of one thing, as activations are."""
    return len(set(walk_back([node], {other: at for other, at in stops.items() if other is not node})[0])) > 1


def _of_stream(notes: Notes, norm: Node, stops: Stops, streams: Stops) -> bool:
    """Whether a norm reads a stream, and not what a layer has made of it, as batch norms do."""
    place = notes.normed[norm][1].place
    if place is None:
        return False
    met = set(walk_back([place.node], {node: at for node, at in stops.items() if node is not norm})[0])
    return bool(met) and met <= streams.keys()
