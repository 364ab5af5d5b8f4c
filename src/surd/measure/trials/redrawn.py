"""Redrawn: what a probe sees when some of the weights are multiplied, as if they had been drawn larger or smaller."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surd.measure.calling.inputs import Inputs
from surd.measure.probe import probe
from surd.measure.sites import Attention, Role, Trace
from surd.measure.use import Use


@dataclass(frozen=True)
class Change:
    """A use of a weight, the weight, and by what the part that the use is about is multiplied."""

    use: Use
    weight: Tensor
    factor: float


def redrawn(model: nn.Module, inputs: Inputs, changes: Sequence[Change]) -> Trace:
    """The scales of the changed model; the weights are then as they were, to the last bit."""
    with multiplied(changes):
        return probe(model, inputs)


@contextmanager
def multiplied(changes: Sequence[Change]) -> Generator[None]:
    """Inside, the parts are multiplied."""
    kept = {id(one.weight): (one.weight, one.weight.detach().clone()) for one in changes}
    try:
        with torch.no_grad():
            for one in changes:
                one.weight.mul_(_factors(one))
        yield
    finally:
        with torch.no_grad():
            for weight, before in kept.values():
                weight.copy_(before)


def _factors(change: Change) -> Tensor:
    """One for each place of the axis that parts share, shaped to multiply the weight."""
    weight, use = change.weight, change.use
    if use.axis is None:
        return torch.tensor(change.factor, dtype=weight.dtype, device=weight.device)
    factors = torch.ones(weight.shape[use.axis], dtype=weight.dtype, device=weight.device)
    factors[list(use.places)] = change.factor
    return factors.reshape([-1 if axis == use.axis else 1 for axis in range(weight.dim())])


def logit_std(trace: Trace, site: Attention) -> float | None:
    """Standard deviation of the products of query and key, before any bias: slope · rms(q) · rms(k) · √d_k."""
    sizes = {one.site.name: one.rms for one in trace.readings}
    query, key = (sizes.get(site.name.replace(f"{Role.SCORE}", f"{role}")) for role in (Role.QUERY, Role.KEY))
    if query is None or key is None or site.slope is None:
        return None
    return abs(site.slope) * query * key * site.d_k**0.5


def branches(trace: Trace, path: str) -> dict[str, float]:
    """The sizes of what the sub-layers nearest to a path add to the stream, by the names of their sites."""
    found = {one.site.name: (one.site.path, one.rms) for one in trace.readings if one.site.role is Role.BRANCH}
    near = max((_shared(path, where) for where, _ in found.values()), default=0)
    return {name: rms for name, (where, rms) in found.items() if _shared(path, where) == near}


def _shared(one: str, other: str) -> int:
    """How many modules two paths have in common, from the root."""
    count = 0
    for first, second in zip(one.split("."), other.split("."), strict=False):
        if first != second:
            break
        count += 1
    return count
