"""Streams: what residual connections carry past a branch: the stream itself, or only a norm of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch.autograd.graph import Node

from surd.measure.trace.calls import Fused, Residual, Seen
from surd.measure.trace.graph import Place, comes_from, parents, place_after, walk_back
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
    """That norm reads what the same module made, a sum or a layer's output: it stands behind a branch, as in
    post-norm."""
    behind: int | None
    """Which connection made the sum that this norm reads, counted from 0."""
    pre: bool
    """The branch begins with a norm of its own of what is carried."""
    last: bool
    """No norm reads what comes of this connection: it stands behind the stack, in a head."""
    factor: float
    """By which number what is carried is multiplied, and the branch is not."""
    twice: bool
    """The branch is a sum with the same stream already: it is added twice."""
    replaced: str
    """The norm whose branch took the place of the stream before this connection, instead of being added to it."""
    attends: bool
    """That branch is an attention."""


def read_carried(notes: Notes) -> list[Carried]:
    """Every residual connection, in the order of the calls; needs notes with values."""
    return [_carried(notes, residual) for residual in notes.residuals]


def _carried(notes: Notes, residual: Residual) -> Carried:
    carried, where = notes.norms.get(residual.carried), residual.where
    others: dict = {node: place for node, place in notes.norms.items() if node is not residual.carried}
    met, _ = walk_back([residual.branch], {**others, residual.carried: carried or _nowhere(notes)})
    normed, within, error, behind = False, False, 0.0, None
    same, again = _same_norms(notes, residual.carried), _normed_twice(notes, residual, met)
    if residual.carried in notes.normed:
        norm, read = notes.normed[residual.carried]
        own = (again or bool(same & met.keys())) and read.shape == residual.value.shape
        normed = own and _inside(norm.path, where.path)
        made = None if read.place is None else notes.sums.get(read.place.node)
        within = made is not None and (made.path == where.path or _inside(made.path, where.path))
        within |= _joins_a_parameter(notes, read) or _behind_a_layer(notes, read, where.path)
        if made is not None and read.place is not None:
            behind = notes.residuals.index(notes.joined[read.place.node])
        if normed and read.value is not None:
            value = read.value.double()
            error = float((residual.value.double() - value).norm() / value.norm().clamp(min=1e-30))
    other = notes.joined.get(residual.branch)
    replaced, attends = _replaced(notes, residual)
    return Carried(
        path=where.path,
        file=where.file,
        line=where.line,
        error=error,
        normed=normed,
        within=within,
        behind=behind,
        pre=not again and not same & met.keys() and _begins_normed(notes, residual.carried, met),
        last=normed and _is_last(notes, residual),
        factor=residual.factor,
        twice=other is not None and other.carried is residual.carried and residual.factor == other.factor == 1,
        replaced=replaced,
        attends=attends,
    )


def _begins_normed(notes: Notes, carried: Node, met: Iterable[Node]) -> bool:
    """Whether a branch begins with norms of what is carried; norms of its own, as of queries, stand behind them."""
    begins, inner, known = False, [*met], set(met)
    while inner:
        norm = inner.pop()
        if norm is carried:
            return False
        if _reads(notes, norm, carried):
            begins = True
        elif norm in notes.normed and (place := notes.normed[norm][1].place) is not None:
            further = walk_back([place.node], {**notes.norms, carried: _nowhere(notes)})[0].keys() - known
            known |= further
            inner += further
    return begins


def _reads(notes: Notes, norm: Node, carried: Node) -> bool:
    """Whether a norm reads what is carried, give or take what no layer has made, as positions."""
    place = notes.normed[norm][1].place if norm in notes.normed else None
    if place is None:
        return False
    stops = dict.fromkeys((carried, *notes.norms, *notes.projections), _nowhere(notes))
    return carried in walk_back([place.node], stops)[0]


def _normed_twice(notes: Notes, residual: Residual, met: Iterable[Node]) -> bool:
    """Whether the norm whose output is carried also begins the branch: one module, called on its own output."""
    carried = notes.normed.get(residual.carried)
    if carried is None or not _inside(carried[0].path, residual.where.path) or carried[0].path == residual.where.path:
        return False  # calls in the module that adds cannot be told apart
    return any(
        notes.normed[node][0].path == carried[0].path and _reads(notes, node, residual.carried)
        for node in met
        if node in notes.normed
    )


def _behind_a_layer(notes: Notes, read: Seen, block: str) -> bool:
    """Whether a layer of this block made what a norm reads: a branch without its stream, which may have been zero."""
    if read.place is None:
        return False
    here = _nowhere(notes)
    _, passed = walk_back([read.place.node], dict.fromkeys((*notes.sums, *notes.inputs, *notes.norms), here))
    return any(node in notes.projections and _inside(notes.projections[node].where.path, block) for node in passed)


def _is_last(notes: Notes, residual: Residual) -> bool:
    node = next((node for node, one in notes.joined.items() if one is residual), None)
    return node is not None and not any(comes_from(norm, node) for norm in reversed(notes.norms))


def _replaced(notes: Notes, residual: Residual) -> tuple[str, bool]:
    """Where layers behind a norm of the last sum make what is carried, with no sum around them: the norm's path.

    The norm stands in the module of either sum; what a stack has between its stages is of neither. In post-norm stacks
    what is carried is a norm of that. And whether those layers are an attention.
    """
    sums = {node: _nowhere(notes) for node in (*notes.sums, *notes.inputs)}
    begins = {lookup.place.node: lookup.place for lookup in notes.lookups}
    start = residual.carried
    if start in notes.normed:
        read = notes.normed[start][1].place
        if read is None or read.node in notes.sums:
            return "", False
        start = read.node
    met, passed = walk_back([start], {**sums, **begins, **notes.norms})
    attends = any(node in notes.products and notes.products[node].mixes for node in passed) or any(
        isinstance(call, Fused)
        and call.mix is not None
        and call.mix.place is not None
        and call.mix.place.node in passed
        for call in notes.attention
    )
    if len(met) != 1 or start in notes.norms or not any(node in notes.projections for node in passed):
        return "", False
    stop = next(iter(met))
    where, read = notes.normed.get(stop, (residual.where, None))
    if start is not residual.carried:  # norm(f(x)), and x is a norm of the same kind
        alike = read is not None and attends and place_after(stop).shape == residual.value.shape
        near = where.path == residual.where.path or _inside(where.path, residual.where.path)
        return ((where.path or ".") if alike and near else ""), attends
    before = None if read is None or read.place is None else notes.sums.get(read.place.node)
    if read is None or before is None or read.shape != residual.value.shape:
        return "", False
    near = any(where.path == one or _inside(where.path, one) for one in (before.path, residual.where.path))
    return ((where.path or ".") if near else ""), attends


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
