"""Flow: on what one output position depends, and by what positions are told apart."""

import torch
from torch import Tensor

from surd.measure.calls import Fused, LookUp, Softmax
from surd.measure.factors import products_behind
from surd.measure.gains import HIDDEN, signs
from surd.measure.graph import Place, place_of
from surd.measure.sites import Flow
from surd.measure.tap import Tap

STEADY = 1e-5
"""Relative difference below which numbers at two positions are the same."""


def read_flows(tap: Tap, outputs: list[Tensor]) -> list[Flow]:
    """What the middle position of the first row depends on, at every table of tokens and every input of numbers.

    One backward pass with random signs on that position's outputs; what it does not depend on gets exactly zero.
    """
    output = next((x for x in outputs if x.requires_grad and x.dim() >= 2), None)
    tokens = [lookup for lookup in tap.lookups if lookup.token]
    sources = [(x.place, tap.names.parameter(x.table) or x.where.path, length(tap, x)) for x in tokens]
    for node, name in tap.inputs.items():
        place = tap.origins.places[node]
        sources.append((place, name, place.shape[1] if len(place.shape) == 3 else 1))
    if output is None:
        return []
    # The model's last word belongs to what it read last: in an encoder-decoder, the decoder's tokens.
    known = [(place, name, positions) for place, name, positions in sources if positions is not None]
    return [_flow(place, name, positions, output, last=place is known[-1][0]) for place, name, positions in known]


def _flow(source: Place, name: str, positions: int, output: Tensor, last: bool) -> Flow:
    place = place_of(output)
    assert place is not None, "it requires a gradient"
    rows = source.shape.numel() // (positions * source.shape[-1]) if positions > 1 else source.shape[0]
    answers = signs(place).reshape(-1, output.shape[-1])
    own = last and positions > 1 and len(answers) == rows * positions
    middle = max(1, len(answers) // rows) // 2
    shown = torch.zeros_like(answers)
    shown[middle] = answers[middle]
    gradient = torch.autograd.grad(
        [place.edge], [source.edge], [shown.view(place.shape)], retain_graph=True, allow_unused=True
    )[0]
    moved = torch.zeros(source.shape) if gradient is None else gradient
    seen = (moved != 0).reshape(rows, positions, -1).any(-1)
    return Flow(
        source=name,
        sees_earlier=bool(seen[0, :middle].any()),
        sees_itself=bool(seen[0, middle : middle + 1].any()),
        sees_later=bool(seen[0, middle + 1 :].any()),
        sees_other_rows=bool(seen[1:].any()),
        own=own,
    )


def length(tap: Tap, lookup: LookUp) -> int | None:
    """Positions in a row; ids without a batch axis are cut as the attention that reads them cuts them."""
    if lookup.ids.dim() > 1:
        return lookup.ids.shape[1]
    for call in tap.attention:
        if isinstance(call, Fused) and call.query.place is not None:
            behind, queries = tap.origins.of(call.query.place.node), call.query.shape[-2]
        elif isinstance(call, Softmax) and call.place is not None:
            behind, queries = tap.origins.of(call.place.node), call.values.shape[-2]
        else:
            continue
        if lookup.place.node in behind and lookup.ids.numel() % queries == 0:
            return queries
    return None


def read_positions(tap: Tap) -> str | None:
    """How a model that was given one and the same token everywhere still tells positions apart."""
    lookup = next((lookup for lookup in tap.lookups if lookup.token), None)
    positions = None if lookup is None else length(tap, lookup)
    if lookup is None or positions is None:
        return None
    width = lookup.place.shape[-1]
    operands = [x.operand.value for x in lookup.candidates.values() if x.operand.shape[-1] == width]
    entering = operands[-1] if operands else None
    if entering is None:
        return None
    if _varies(entering.reshape(-1, positions, width), 1):
        return "added"
    for call in tap.attention:
        products = products_behind(tap, call) if isinstance(call, Softmax) and call.place is not None else []
        query = call.query.value if isinstance(call, Fused) else products[0].left.value if products else None
        if query is not None:
            turned = any(_varies(query, axis) for axis in range(query.dim() - 1) if query.shape[axis] == positions)
            scores = call.mask if isinstance(call, Fused) else call.values
            return "rotary" if turned else "bias" if scores is not None and _uneven(scores) else "none"
    return None


def _uneven(scores: Tensor) -> bool:
    """Whether the scores of one query differ between keys that it sees."""
    if not scores.is_floating_point():
        return False
    seen = (scores > HIDDEN) & scores.isfinite()
    spread = scores.where(seen, -torch.inf).amax(-1) - scores.where(seen, torch.inf).amin(-1)
    return bool((spread > STEADY).any())


def _varies(x: Tensor, axis: int) -> bool:
    """Whether numbers differ along an axis; the first position is left out, where a rotation turns nothing."""
    later = x.narrow(axis, 1, x.shape[axis] - 1).float()
    difference = (later - later.narrow(axis, 0, 1)).abs().max()
    return bool(difference > STEADY * later.abs().max())
