"""Gains: by how much a place of the graph scales what comes from another, read from the Jacobian between the two.

Biases, masks and relative positions add constants and so drop out; rotations, slices, copies and concatenations have
gain 1 exactly, because the vectors that are pushed through have entries ±1.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.trace.graph import Place, Stops, parents, place_after, place_before, walk_back

SEED = 20170612
SAMPLED_ROWS = 16
"""How many rows of a Jacobian are read one by one where it cannot be pushed through."""
HIDDEN = -9e3
"""A score below this is a masked key; people who do not mask with -inf take -1e4 or less."""
STATISTICS = ("LinalgVectorNorm", "NormBackward", "Rsqrt", "Sqrt", "Std", "Var")
"""What a norm that is written by hand divides by, as the graph names it."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The scale between a place and the stops behind it."""

    value: float
    """Root mean square over all entries of the place: 1 for a copy."""
    cap: float | None
    """c of a soft cap c · tanh(x / c) on the way, which is taken at its slope at zero."""
    stops: tuple[Node, ...]
    """What it was measured from."""
    squares: Tensor
    """The same of every entry of the place, squared; 0 where nothing arrives."""


@dataclass(frozen=True, kw_only=True)
class Slope:
    """The way from a raw product of queries and keys to the softmax."""

    value: float
    cap: float | None
    """c of a soft cap on the way."""
    vector: Tensor
    """What was pulled back from the scores, centred in each row."""
    pulled: Tensor
    """What of it arrived at the product, the cap undone."""


def pull(place: Place, behind: Place, vector: Tensor) -> Tensor | None:
    """Jᵀ v of the way from `behind` to `place`; None when there is no way."""
    return torch.autograd.grad([place.edge], [behind.edge], [vector], retain_graph=True, allow_unused=True)[0]


def push(place: Place, behind: Place, vector: Tensor) -> Tensor:
    """J u of the way from `behind` to `place`: the gradient of ⟨Jᵀ v, u⟩ with respect to v.

    A function of the user's may have no second derivative. Then the norms of some rows of J stand in: what the entries
    of J u are worth on average over all signs of u. The other entries are NaN.
    """
    probe = torch.zeros(place.shape, dtype=place.dtype, device=place.device, requires_grad=True)
    try:
        pulled = torch.autograd.grad(
            [place.edge], [behind.edge], [probe], create_graph=True, retain_graph=True, allow_unused=True
        )[0]
        if pulled is None:
            return probe.detach()
        return torch.autograd.grad([pulled], [probe], [vector], retain_graph=True)[0]
    except RuntimeError:
        return _row_norms(place, behind)


def _row_norms(place: Place, behind: Place) -> Tensor:
    norms = torch.full(place.shape, math.nan, dtype=place.dtype, device=place.device)
    entries = place.shape.numel()
    for entry in torch.linspace(0, entries - 1, min(SAMPLED_ROWS, entries)).long().tolist():
        one = torch.zeros(entries, dtype=place.dtype, device=place.device)
        one[entry] = 1
        row = pull(place, behind, one.view(place.shape))
        norms.view(-1)[entry] = 0 if row is None else row.norm()
    return norms


def gain(place: Place, stops: Stops) -> Gain | None:
    """The gain of a place over the first stops behind it, or None when there are none.

    A sum of what different stops deliver (a low-rank adapter beside its base, content plus position) is an operand in
    its own right and becomes the stop. Stops that fill different entries (a concatenation) are taken one by one.
    """
    met, passed = walk_back([place.node], stops)
    if not met:
        return None
    if sums := _joins(passed, stops):
        return gain(place, {**stops, **sums})
    if (bend := soft_cap(place, stops, passed)) is not None:
        outer, inner = gain(place, {bend: place_after(bend)}), gain(place_before(bend), stops)
        assert outer is not None and inner is not None, "every way passes the cap, and the stops lie behind it"
        return Gain(
            value=outer.value * inner.value,
            cap=outer.value,
            stops=inner.stops,
            squares=inner.squares * outer.value**2,
        )
    taken = torch.zeros(place.shape, dtype=torch.bool, device=place.device)
    squares = torch.zeros(place.shape, dtype=torch.float64, device="cpu")
    for stop in _downstream_first(list(met.values())):
        pushed = push(place, stop, signs(stop))
        fresh = (pushed != 0) & ~pushed.isnan() & ~taken
        squares[fresh.cpu()] = pushed[fresh].cpu().double() ** 2
        taken |= fresh
    entries = int(taken.sum())
    value = math.sqrt(float(squares.sum()) / entries) if entries else 0.0
    return Gain(value=value, cap=None, stops=tuple(met), squares=squares)


def slope(scores: Place, product: Place, values: Tensor, axis: int) -> Slope | None:
    """From the raw product to the softmax: the factor, and the soft cap between if there is one.

    Only differences of logits within a row matter to a softmax, so the vector is centred in each row over the keys
    that can be seen and come from the product (a sink's column does not). None when no row has two such keys.
    """
    seen = _from_product(scores, product, (values > HIDDEN) & values.isfinite())
    seen &= seen.sum(axis, keepdim=True) > 1
    if not seen.any():
        return None
    vector = torch.randn(scores.shape, generator=_generator(), dtype=torch.float32).to(scores.device) * seen
    vector -= vector.sum(axis, keepdim=True) / seen.sum(axis, keepdim=True).clamp(min=1)
    vector = (vector * seen).to(scores.dtype)
    bend = soft_cap(scores, {product.node: product}, walk_back([scores.node], {product.node: product})[1])
    start, bent = scores, vector
    if bend is not None:
        arrived = pull(scores, place_after(bend), vector)
        assert arrived is not None, "every way passes the cap"
        start, bent = place_before(bend), arrived
    pulled = pull(start, product, bent)
    return Slope(
        value=_length(pulled) / _length(vector),
        cap=None if bend is None else _length(bent) / _length(vector),
        vector=vector,
        pulled=torch.zeros(product.shape) if pulled is None else pulled,
    )


def _from_product(scores: Place, product: Place, seen: Tensor) -> Tensor:
    """Which of the scores that are seen come from the product, each from its own entry.

    A sink's does not, though it moves with the others where the row's maximum is subtracted: then all entries of a row
    together move the sink alone, and else all but the sink.
    """
    normal = torch.randn(product.shape, generator=_generator(), dtype=torch.float32)
    moved = push(scores, product, normal.to(product.device, product.dtype))
    together = push(scores, product, torch.ones(product.shape, dtype=product.dtype, device=product.device))
    still = together.abs() < 1e-3 * moved.abs().amax()
    reached = seen & (moved != 0)
    return reached & (still if int(still[reached].sum()) * 2 > int(reached.sum()) else ~still)


def soft_cap(place: Place, stops: Stops, passed: list[Node]) -> Node | None:
    """The tanh through which every way from `place` back to the stops leads, if there is one."""
    for node in passed:
        if node.name().startswith("Tanh"):
            met, _ = walk_back([place.node], {**stops, node: place_after(node)})
            if set(met) == {node}:
                return node
    return None


def hand_written_norms(place: Place, stops: Stops) -> dict[Node, Place]:
    """Products on the way of something with a statistic of the same thing: norms that no function or module names."""
    found = {}
    for node in walk_back([place.node], stops)[1]:
        branches = parents(node)
        if len(branches) == 2 and node.name().startswith(("Mul", "Div")):
            (left, left_way), (right, right_way) = (walk_back([branch], stops) for branch in branches)
            statistics = [any(step.name().startswith(STATISTICS) for step in way) for way in (left_way, right_way)]
            if statistics[0] != statistics[1] and set(left) & set(right):
                found[node] = place_after(node)
    return found


def signs(place: Place) -> Tensor:
    """±1 at every entry, from a generator of our own: nobody else's random numbers change."""
    drawn = torch.randint(0, 2, place.shape, generator=_generator()) * 2 - 1
    return drawn.to(place.device, place.dtype)


def _joins(passed: list[Node], stops: Stops) -> dict[Node, Place]:
    """Additions whose two sides come from different stops. A rotation's addition has the same ones on both."""
    found = {}
    for node in passed:
        branches = parents(node)
        if node.name().startswith(("Add", "Sub")) and len(branches) == 2:
            left, right = (set(walk_back([branch], stops)[0]) for branch in branches)
            if left and right and not left & right:
                found[node] = place_after(node)
    return found


def _downstream_first(stops: list[Place]) -> list[Place]:
    """A stop that also feeds another one comes after it and is judged on what is left.

    So with multi-head latent attention: its rotary key comes from the projection that feeds the key projection too.
    """
    if len(stops) == 1:
        return stops
    behind = {}
    for stop in stops:
        others = {other.node: other for other in stops if other is not stop}
        behind[stop] = sum(stop.node in walk_back([other], {stop.node: stop})[0] for other in others)
    return sorted(stops, key=lambda stop: behind[stop])


def _length(vector: Tensor | None) -> float:
    return 0.0 if vector is None else float(vector.double().norm())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)
