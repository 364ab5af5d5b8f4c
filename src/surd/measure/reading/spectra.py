"""Spectra: the largest singular value of W_q W_kᵀ of every head, whatever module or packed matrix holds the two."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.calling.inputs import Inputs
from surd.measure.calling.restore import preserved
from surd.measure.reading.factors import products_behind
from surd.measure.trace.calls import Fused, Projection, Seen
from surd.measure.trace.forward import forward
from surd.measure.trace.gains import pull, signs
from surd.measure.trace.graph import walk_back
from surd.measure.trace.notes import Notes


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """One attention, in the order of the forward."""

    number: int
    """Which of the attentions that have a product, or one call."""
    norms: tuple[float, ...]
    """σ_max(W_q W_kᵀ), one a head; one for all where heads cannot be told."""
    shape: tuple[int, int, bool]
    """Width that the query reads, d_k, and whether keys read the same: only the like are compared."""


def spectra(module: nn.Module, inputs: Inputs) -> list[Spectrum]:
    """Attentions whose query and key each come from one projection; of others nothing is said."""
    found: list[Spectrum] = []
    with preserved(module) as keep:
        notes = forward(module, keep, inputs, None).notes
        number = 0
        for call in notes.attention:
            if isinstance(call, Fused):
                query, key, d_k = call.query, call.key, call.query.shape[-1]
            elif products := products_behind(notes, call):
                query, key, d_k = products[0].left, products[0].right, products[0].d_k
            else:
                continue
            sides = _slice(notes, query), _slice(notes, key)
            if sides[0] is not None and sides[1] is not None:
                norms = _norms(sides[0], sides[1], d_k)
                shape = (sides[0].shape[1], d_k, sides[0].shape[1] == sides[1].shape[1])
                if norms:
                    found.append(Spectrum(number=number, norms=norms, shape=shape))
            number += 1
    return found


def _slice(notes: Notes, operand: Seen) -> Float[Tensor, "features width"] | None:
    """The rows of a weight that make an operand; of a packed projection its share."""
    if operand.place is None:
        return None
    stops = notes.beginnings
    met, _ = walk_back([operand.place.node], stops)
    if len(met) != 1 or (projection := notes.projections.get(next(iter(met)))) is None:
        return None
    moved = pull(operand.place, projection.place, signs(operand.place))
    weight = _outputs_first(projection)
    if moved is None or weight is None or moved.shape[-1] != weight.shape[0]:
        return None
    used = (moved.reshape(-1, moved.shape[-1]) != 0).any(0)
    return weight[used.to(weight.device)]


def _outputs_first(projection: Projection) -> Float[Tensor, "features width"] | None:
    """A weight as a linear layer has it: what it makes of each input, in rows; seen from one output's gradient."""
    weight = None if projection.weight is None else projection.weight.detach().float()
    if weight is None or weight.dim() != 2:
        return None
    made, read = projection.place.shape[-1], projection.read.shape[-1]
    if weight.shape == (made, read) and made != read:
        return weight
    if weight.shape == (read, made) and made != read:
        return weight.mT
    if weight.shape != (made, read) or projection.read.place is None:
        return None
    one = torch.zeros(projection.place.shape, dtype=projection.place.dtype, device=projection.place.device)
    one.view(-1)[0] = 1
    row = pull(projection.place, projection.read.place, one)
    if row is None:
        return None
    shown = row.reshape(-1, read).abs().amax(0).float()
    return weight if torch.allclose(shown, weight[0].abs(), rtol=1e-3, atol=1e-6) else weight.mT


def _norms(query: Float[Tensor, "q width"], key: Float[Tensor, "k width"], d_k: int) -> tuple[float, ...]:
    """σ² is the largest eigenvalue of (W_q W_qᵀ)(W_k W_kᵀ), of size d_k."""
    if query.shape[0] % d_k or key.shape[0] % d_k or query.shape[0] % key.shape[0]:
        return ()
    heads, shared = query.shape[0] // d_k, key.shape[0] // d_k
    left = query.unflatten(0, (heads, d_k)).double()
    right = key.unflatten(0, (shared, d_k)).double().repeat_interleave(heads // shared, 0)
    squares = torch.linalg.eigvals((left @ left.mT) @ (right @ right.mT)).abs().amax(-1)
    return tuple(squares.sqrt().tolist())
