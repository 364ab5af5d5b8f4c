"""Multipliers: by what the rows of a table enter the model, by what the head's logits leave it, and what is tied."""

from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from surd.measure.reading.entering import added, by_values, shares
from surd.measure.reading.placing import blank_positions, still_positions
from surd.measure.sites import Embedding, Head, Role, Site, Tie, Unseen, numbered
from surd.measure.tensors import storage
from surd.measure.trace.calls import LookUp, Projection, Seen, Size
from surd.measure.trace.gains import gain, push, signs
from surd.measure.trace.graph import place_of, walk_back
from surd.measure.trace.notes import Notes

EXPLAINED = 0.999
"""R² from which a candidate is a multiple of the rows, plus what does not depend on them."""
ALIKE = 1e-5
"""Two candidates whose R² differ by less are multiples alike; behind a norm it is lower by about 2 / width."""


def read_embeddings(notes: Notes) -> tuple[list[Embedding], list[Size], list[Unseen]]:
    """The multiplier of every look-up of tokens; its rows, and what enters the first block of them."""
    tokens = [lookup for lookup in notes.lookups if lookup.token]
    plain = [Site(path=x.where.path, role=Role.TOKEN, file=x.where.file, line=x.where.line) for x in tokens]
    embeddings, sizes, unseen = [], [], []
    for lookup, site in zip(tokens, numbered(plain), strict=True):
        embedding, entering = _embedding(notes, lookup, site)
        sizes.append(Size(site=site, seen=lookup.rows))
        if entering is None:
            unseen.append(Unseen(what=site.name, reason="nothing that enters the model is a multiple of its rows"))
        else:
            sizes.append(Size(site=replace(site, role=Role.EMBED), seen=entering))
        embeddings.append(embedding)
    return embeddings, sizes, unseen


def read_features(notes: Notes) -> list[Embedding]:
    """The same of the last layer that inputs of numbers pass before the first block."""
    found = [one for one in notes.features if one.candidates and not one.attended]
    return [
        _embedding(notes, one, Site(path=one.where.path, role=Role.EMBED, file=one.where.file, line=one.where.line))[0]
        for one in found[-1:]
    ]


def _embedding(notes: Notes, lookup: LookUp, site: Site) -> tuple[Embedding, Seen | None]:
    multiplier, r_squared, entering = _multiplier(lookup)
    table = lookup.table.detach()
    sums = None if multiplier is None or entering is None else added(lookup, multiplier, entering)
    tokens, places = shares(lookup) or (None, None)
    return Embedding(
        site=site,
        table=notes.names.parameter(lookup.table, site.path),
        rows=table.shape[0],
        width=table.shape[1] if lookup.token else lookup.place.shape[-1],
        multiplier=multiplier,
        r_squared=r_squared,
        table_std=float(table.float().std()),
        signal_ratio=None if sums is None else sums.ratio,
        token_rms=None if multiplier is None else abs(multiplier) * lookup.rows.rms,
        even=sums is not None and sums.even,
        token_share=tokens,
        place_share=places,
        dtype=_promoted(lookup, entering),
        blank="" if entering is None else blank_positions(notes, lookup, entering),
        still="" if entering is None else still_positions(notes, lookup, entering),
        ids=lookup.ids.detach() if lookup.token else None,
    ), entering


def read_head(notes: Notes, outputs: list[Tensor]) -> tuple[Head | None, Tensor | None, list[Size], list[Unseen]]:
    """The pre-softmax projection, if the model has one, and its matrix; what it reads, and the logits.

    It is the only last projection behind an output, or behind what a cross-entropy reads, that is as wide as a table of
    tokens has rows; a table may have one row more, for padding.
    """
    tables = {lookup.table.shape[0] for lookup in notes.lookups if lookup.token}
    stops = {node: projection.place for node, projection in notes.projections.items()}
    for output in (*outputs, *notes.logits):
        place = place_of(output)
        if place is None or not output.dim() or not {output.shape[-1], output.shape[-1] + 1} & tables:
            continue
        met, _ = walk_back([place.node], stops)
        found = [notes.projections[node] for node in met]
        heads = [projection for projection in found if projection.place.shape[-1] == output.shape[-1]]
        if len(heads) == 1 and (head := _head(notes, heads[0], output)) is not None:
            hidden = Size(site=replace(head.site, role=Role.HIDDEN), seen=heads[0].read)
            return head, heads[0].weight, [hidden, Size(site=head.site, seen=notes.see(output))], []
    reason = "no output is as wide as a table of tokens, with one projection behind it"
    return None, None, [], [Unseen(what=f":{Role.LOGITS}", reason=reason)] if tables else []


def read_ties(notes: Notes, head: Head | None, weight: Tensor | None) -> list[Tie]:
    """Every pair of one size among the token tables that ran and the head's matrix."""
    matrices = {}
    for lookup in notes.lookups:
        if lookup.token:
            matrices[notes.names.parameter(lookup.table, lookup.where.path)] = lookup.table
    pairs = list(combinations(matrices.items(), 2))
    if head is not None and weight is not None:
        pairs += [(table, (head.weight, weight)) for table in matrices.items()]
    return [
        Tie(
            first=first,
            second=second,
            same_parameter=one is other,
            same_storage=any(_stored(one) == _stored(turned) is not None for turned in (other, other.mT)),
            equal_values=any(one.shape == turned.shape and torch.equal(one, turned) for turned in (other, other.mT)),
        )
        for (first, one), (second, other) in pairs
        if sorted(one.shape) == sorted(other.shape)
    ]


def _multiplier(lookup: LookUp) -> tuple[float | None, float, Seen | None]:
    """m and R² of the regression of J u on u, u = ±1 on every row, for the best candidate; and that candidate.

    Positions, segments and biases are constants, of which a Jacobian knows nothing. A norm is no multiple of its input
    and lowers R²: the candidate before it wins. Of several that are exact multiples the last has all factors in it.
    """
    best: tuple[float | None, float, Seen | None] = (None, 0.0, None)
    given = signs(lookup.place)
    for candidate in lookup.candidates.values():
        assert candidate.place is not None, "the rows are behind it"
        pushed = push(candidate.place, lookup.place, given)
        for expected in _orders(given.reshape(lookup.rows.shape), pushed.shape):
            known = ~pushed.isnan()
            u, z = expected[known].double(), pushed[known].double()
            overlap, energy = float((u * z).sum()), float((z * z).sum())
            r_squared = overlap**2 / (energy * float((u * u).sum())) if energy else 0.0
            if r_squared > best[1] or r_squared > max(EXPLAINED, best[1] - ALIKE):
                best = overlap / float((u * u).sum()), max(r_squared, best[1]), candidate
    if best[2] is None or best[1] <= EXPLAINED:
        return None, best[1], None
    return by_values(lookup, best[2]) or best[0], best[1], best[2]


def _orders(rows: Tensor, shape: torch.Size) -> list[Tensor]:
    """The rows in the order of a candidate: as looked up, or with sequence and batch exchanged."""
    orders = [rows.reshape(shape)] if rows.shape[-1] == shape[-1] else []
    if rows.dim() == 3 and rows.transpose(0, 1).shape == shape:
        orders.append(rows.transpose(0, 1))
    return orders


def _promoted(lookup: LookUp, entering: Seen | None) -> str:
    """The type of what enters, where a factor has widened it: a cast would stand in the graph."""
    if entering is None or entering.value is None or entering.place is None or lookup.rows.value is None:
        return ""
    wider = entering.value.dtype.itemsize > lookup.rows.value.dtype.itemsize
    _, passed = walk_back([entering.place.node], {lookup.place.node: lookup.place})
    cast = any(node.name().startswith("ToCopy") for node in passed)
    return str(entering.value.dtype).removeprefix("torch.") if wider and not cast else ""


def _head(notes: Notes, projection: Projection, output: Tensor) -> Head | None:
    """Both gains of the output side."""
    place, read = place_of(output), projection.read.place
    assert place is not None
    after = gain(place, {projection.place.node: projection.place})
    before = gain(read, {**notes.outputs, **notes.beginnings}) if read is not None else None
    if after is None or before is None:
        return None
    where = projection.where
    return Head(
        site=Site(path=where.path, role=Role.LOGITS, file=where.file, line=where.line),
        weight=notes.names.parameter(projection.weight, where.path),
        width=projection.read.shape[-1],
        input_gain=before.value,
        output_gain=after.value,
        cap=after.cap,
    )


def _stored(tensor: Tensor) -> tuple[object, ...] | None:
    """Where a tensor's numbers lie; None for wrappers and for tensors without any."""
    memory = storage(tensor)
    return None if memory is None else (memory, tensor.storage_offset(), tensor.shape, tensor.stride())
