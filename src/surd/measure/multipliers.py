"""Multipliers: by what the rows of a table enter the model, by what the head's logits leave it, and what is tied."""

from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from surd.measure.calls import LookUp, Projection, Seen, Size, storage
from surd.measure.gains import gain, push, signs
from surd.measure.graph import place_of, walk_back
from surd.measure.notes import Notes
from surd.measure.sites import Embedding, Head, Role, Site, Tie, Unseen, numbered

EXPLAINED = 0.999
"""R² from which a candidate is a multiple of the rows, plus what does not depend on them."""


def read_embeddings(notes: Notes) -> tuple[list[Embedding], list[Size], list[Unseen]]:
    """The multiplier of every look-up of tokens; its rows, and what enters the first block of them."""
    tokens = [lookup for lookup in notes.lookups if lookup.token]
    plain = [Site(path=x.where.path, role=Role.TOKEN, file=x.where.file, line=x.where.line) for x in tokens]
    embeddings, sizes, unseen = [], [], []
    for lookup, site in zip(tokens, numbered(plain), strict=True):
        multiplier, r_squared, entering = _multiplier(lookup)
        sizes.append(Size(site=site, seen=lookup.rows))
        if entering is None:
            unseen.append(Unseen(what=site.name, reason="nothing that enters the model is a multiple of its rows"))
        else:
            sizes.append(Size(site=replace(site, role=Role.EMBED), seen=entering))
        table = lookup.table.detach()
        embeddings.append(
            Embedding(
                site=site,
                table=notes.names.parameter(lookup.table, site.path),
                rows=table.shape[0],
                width=table.shape[1],
                multiplier=multiplier,
                r_squared=r_squared,
                table_std=float(table.float().std()),
                signal_ratio=_signal_ratio(lookup, multiplier, entering),
            )
        )
    return embeddings, sizes, unseen


def read_head(notes: Notes, outputs: list[Tensor]) -> tuple[Head | None, Tensor | None, list[Size], list[Unseen]]:
    """The pre-softmax projection, if the model has one, and its matrix; what it reads, and the logits.

    It is the only last projection behind an output, or behind what a cross-entropy reads, that is as wide as a table of
    tokens has rows; a table may have one row more, for padding.
    """
    tables = {lookup.table.shape[0] for lookup in notes.lookups if lookup.token}
    stops = {node: projection.place for node, projection in notes.projections.items()}
    for output in (*outputs, *notes.logits):
        place = place_of(output)
        if place is None or not {output.shape[-1], output.shape[-1] + 1} & tables:
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
            same_storage=_stored(one) == _stored(other) is not None,
            equal_values=any(one.shape == turned.shape and torch.equal(one, turned) for turned in (other, other.mT)),
        )
        for (first, one), (second, other) in pairs
        if sorted(one.shape) == sorted(other.shape)
    ]


def _multiplier(lookup: LookUp) -> tuple[float | None, float, Seen | None]:
    """m and R² of the regression of J u on u, u = ±1 on every row, for the best candidate; and that candidate.

    Positions, segments and biases are constants, of which a Jacobian knows nothing. A norm is no multiple of its input
    and lowers R²: the candidate before it wins.
    """
    best: tuple[float | None, float, Seen | None] = (None, 0.0, None)
    given = signs(lookup.place)
    for candidate in lookup.candidates.values():
        assert candidate.place is not None, "the rows are behind it"
        pushed = push(candidate.place, lookup.place, given)
        for expected in _orders(given, pushed.shape):
            known = ~pushed.isnan()
            u, z = expected[known].double(), pushed[known].double()
            overlap, energy = float((u * z).sum()), float((z * z).sum())
            r_squared = overlap**2 / (energy * float((u * u).sum())) if energy else 0.0
            if r_squared > best[1] + 1e-9:
                best = overlap / float((u * u).sum()), r_squared, candidate
    return best if best[1] > EXPLAINED else (None, best[1], None)


def _orders(rows: Tensor, shape: torch.Size) -> list[Tensor]:
    """The rows in the order of a candidate: as looked up, or with sequence and batch exchanged."""
    orders = [rows.reshape(shape)] if rows.shape[-1] == shape[-1] else []
    if rows.dim() == 3 and rows.transpose(0, 1).shape == shape:
        orders.append(rows.transpose(0, 1))
    return orders


def _signal_ratio(lookup: LookUp, multiplier: float | None, entering: Seen | None) -> float | None:
    """rms of the scaled rows over that of what is added, taking the two as uncorrelated."""
    if multiplier is None or entering is None:
        return None
    scaled = (multiplier * lookup.rows.rms) ** 2
    added = entering.rms**2 - scaled
    return (scaled / added) ** 0.5 if added > 1e-6 * entering.rms**2 else None


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
