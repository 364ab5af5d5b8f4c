"""Additions: where a forward adds something to a function of itself, and how large the residual stream is there."""

from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.sites import Role, Site, numbered
from surd.measure.trace.graph import parents
from surd.measure.trace.naming import Names, Where
from surd.measure.watching.vitals import StreamVitals

TYPICAL = 256
"""Rows of the stream that are read."""
PLAIN = 8
"""Steps back through views, casts and dropout in search of the addition before."""


@dataclass(frozen=True, kw_only=True)
class Added:
    """One residual addition that was heard."""

    where: Where
    rms: Tensor
    start: Tensor


class Additions:
    """Told of sums while a forward runs; without a graph, as inside of `no_grad`, nothing is seen."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.found: list[Added] = []
        self._starts: dict[Node, Tensor] = {}

    def note(self, out: Tensor, first: Tensor, second: Tensor) -> None:
        """A sum of two: residual, if one is a function of the other, which is the stream, or what begins it."""
        if not out.shape == first.shape == second.shape or out.dim() < 2:
            return
        if first.grad_fn is None or second.grad_fn is None or out.grad_fn is None:
            return
        if _age(first.grad_fn) <= _age(second.grad_fn):
            older, stream, newer = first.grad_fn, first, second.grad_fn
        else:
            older, stream, newer = second.grad_fn, second, first.grad_fn
        branch = _between(newer, older)
        if not any("AccumulateGrad" in name or "mm" in name.lower() for name in branch):
            return  # no weight and no product in it: a smooth activation such as x + 0.04 x³
        start = next((self._starts[node] for node in _way_back(older) if node in self._starts), None)
        start = typical(stream) if start is None else start
        self._starts[out.grad_fn] = start
        self.found.append(Added(where=self.names.here(), rms=typical(out), start=start))

    def finish(self) -> None:
        """The forward is over: lets go of its graph."""
        self._starts.clear()

    def vitals(self) -> tuple[StreamVitals, ...]:
        """The stream after each addition, in their order."""
        places = [added.where for added in self.found]
        sites = [Site(path=where.path, role=Role.STREAM, file=where.file, line=where.line) for where in places]
        return tuple(
            StreamVitals(site=site, rms=float(added.rms), start=float(added.start))
            for site, added in zip(numbered(sites), self.found, strict=True)
        )


def typical(x: Tensor) -> Tensor:
    """The rms of the median row of a sample: single positions may be a thousand times larger in a sound model.

    Sun et al. 2024 (arXiv 2402.17762) call these massive activations.
    """
    rows = x.detach().flatten(0, -2)
    return rows[:: max(1, len(rows) // TYPICAL)].float().square().mean(-1).sqrt().median()


def _age(node: Node) -> int:
    return node._sequence_nr()  # pyrefly: ignore[missing-attribute]


def _between(newer: Node, older: Node) -> list[str]:
    """The names of the functions that make `newer` and are no older than `older`; none if it is not among them."""
    age = _age(older)
    stack, seen = [newer], {newer}
    while stack:
        for parent in parents(stack.pop()):
            if parent not in seen and _age(parent) >= age:
                seen.add(parent)
                stack.append(parent)
    return [node.name() for node in seen] if older is not newer and older in seen else []


def _way_back(node: Node) -> list[Node]:
    """A node and those before it, as long as each reads one other."""
    way = [node]
    while len(way) < PLAIN and len(behind := parents(way[-1])) == 1:
        way.append(behind[0])
    return way
