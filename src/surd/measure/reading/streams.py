"""Streams: what residual connections carry past a branch: the stream itself, or only a norm of it."""

from dataclasses import dataclass

from torch.autograd.graph import Node

from surd.measure.trace.calls import Residual, Seen
from surd.measure.trace.graph import Place, parents, walk_back
from surd.measure.trace.notes import Notes


@dataclass(frozen=True, kw_only=True)
class Carried:
    """One residual connection."""

    path: str
    """The module that adds."""
    file: str
    line: int
    error: float
    """Of what is carried against the stream, ‖carried - stream‖ / ‖stream‖, where it is a norm of it."""
    normed: bool
    """What is carried is the output of a norm that stands in the module that adds, and the branch reads it too."""
    within: bool
    """That norm reads a sum which the same module made: it stands behind a branch, as in post-norm."""
    pre: bool
    """The branch begins with a norm of its own of what is carried."""
    factor: float
    """By which number what is carried is multiplied, and the branch is not."""
    replaced: str
    """The norm whose branch took the place of the stream before this connection, instead of being added to it."""


def read_carried(notes: Notes) -> list[Carried]:
    """Every residual connection, in the order of the calls; needs notes with values."""
    return [_carried(notes, residual) for residual in notes.residuals]


def _carried(notes: Notes, residual: Residual) -> Carried:
    carried = notes.norms.get(residual.carried)
    others: dict = {node: place for node, place in notes.norms.items() if node is not residual.carried}
    met, _ = walk_back([residual.branch], {**others, residual.carried: carried or _nowhere(notes)})
    normed, within, error = False, False, 0.0
    same = _same_norms(notes, residual.carried)
    if residual.carried in notes.normed:
        where, read = notes.normed[residual.carried]
        own = bool(same & met.keys()) and read.shape == residual.value.shape
        normed = own and _inside(where.path, residual.where.path)
        made = None if read.place is None else notes.sums.get(read.place.node)
        within = made is not None and (made.path == residual.where.path or _inside(made.path, residual.where.path))
        within |= _joins_a_parameter(notes, read)
        if normed and read.value is not None:
            value = read.value.double()
            error = float((residual.value.double() - value).norm() / value.norm().clamp(min=1e-30))
    where = residual.where
    pre = not same & met.keys() and any(node in notes.norms for node in met)
    return Carried(
        path=where.path,
        file=where.file,
        line=where.line,
        error=error,
        normed=normed,
        within=within,
        pre=pre,
        factor=residual.factor,
        replaced=_replaced(notes, residual),
    )


def _replaced(notes: Notes, residual: Residual) -> str:
    """Where layers behind a norm of the last sum make what is carried, with no sum around them: the norm's path.

    The norm stands in the module of either sum; what a stack has between its stages is of neither.
    """
    sums = {node: _nowhere(notes) for node in (*notes.sums, *notes.inputs)}
    begins = {lookup.place.node: lookup.place for lookup in notes.lookups}
    met, passed = walk_back([residual.carried], {**sums, **begins, **notes.norms})
    if len(met) != 1 or residual.carried in notes.norms or not any(node in notes.projections for node in passed):
        return ""
    where, read = notes.normed.get(next(iter(met)), (residual.where, None))
    before = None if read is None or read.place is None else notes.sums.get(read.place.node)
    if read is None or before is None or read.shape != residual.value.shape:
        return ""
    near = any(where.path == one or _inside(where.path, one) for one in (before.path, residual.where.path))
    return (where.path or ".") if near else ""


def _same_norms(notes: Notes, carried: Node) -> set[Node]:
    """What is carried, and the outputs of every norm of the same thing: `norm(x) + f(norm(x))` may call it twice."""
    read = notes.normed[carried][1].place if carried in notes.normed else None
    if read is None:
        return {carried}
    others = {
        node: seen.place
        for node, (where, seen) in notes.normed.items()
        if where.path == notes.normed[carried][0].path and seen.place is not None
    }
    return {carried, *(node for node, place in others.items() if place.node is read.node)}


def _nowhere(notes: Notes) -> Place:
    """Where a walk stops matters here, not the place: any will do."""
    return next(iter(notes.beginnings.values()))


def _joins_a_parameter(notes: Notes, read: Seen) -> bool:
    """Whether a norm reads a sum with something that no input reaches: learned queries, of which a decoder begins."""
    node = None if read.place is None else read.place.node
    if node is None or node in notes.sums or not node.name().startswith("Add"):
        return False
    return any(not notes.origins.of(parent) for parent in parents(node))


def _inside(path: str, block: str) -> bool:
    return not block or path.startswith(f"{block}.")
