"""Notes on a forward: which calls of torch are projections, products, softmaxes, look-ups, norms or residual sums."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.calls import Candidate, Fused, LookUp, Operand, Product, Projection, Size, Softmax, rms
from surd.measure.graph import Origins, Place, comes_from, place_of, place_of_result, walk_back
from surd.measure.naming import Names, Where
from surd.measure.products import CONVOLUTIONS, contracted, factors
from surd.measure.sites import Role


class Notes:
    """What was called, where it stands in the graph and in the code; gains are computed from it afterwards."""

    def __init__(self, names: Names, given: Sequence[Tensor], values: bool) -> None:
        """`given` are the integers among the inputs; `values` keeps numbers, for runs that compare them."""
        self.names, self.given, self.values = names, given, values
        self.origins = Origins()
        self.inputs: dict[Node, str] = {}
        self.lookups: list[LookUp] = []
        self.projections: dict[Node, Projection] = {}
        self.products: dict[Node, Product] = {}
        self.attention: list[Softmax | Fused] = []
        self.weights: dict[Node, Place] = {}
        self.norms: dict[Node, Place] = {}
        self.outputs: dict[Node, Place] = {}
        self.sizes: list[Size] = []
        self.opaque: list[tuple[Where, str]] = []

    @property
    def beginnings(self) -> dict[Node, Place]:
        """From where gains are measured: projections, norms, looked-up rows and inputs."""
        projections = {node: projection.place for node, projection in self.projections.items()}
        return {**projections, **self.norms, **self.origins.places}

    @property
    def content(self) -> frozenset[Node]:
        """What differs from row to row: looked-up tokens, and inputs that are numbers."""
        return frozenset(lookup.place.node for lookup in self.lookups if lookup.token) | self.inputs.keys()

    def admit(self, name: str, x: Tensor) -> None:
        """Declares an input of the model that is numbers."""
        place = place_of(x)
        assert place is not None, "an input is admitted with a gradient"
        self.origins.add(place)
        self.inputs[place.node] = name

    def is_live(self, x: Tensor) -> bool:
        """Whether it comes from the input, rather than from weights alone."""
        return bool(self.origins.of(x.grad_fn))

    def fused(
        self, backend: str, query: Tensor, key: Tensor, value: Tensor, scale: float | None, mask: Tensor | None
    ) -> None:
        """An attention in one call."""
        self._enter(query, key)
        self.attention.append(
            Fused(
                where=self.names.here(),
                backend=backend,
                query=self._operand(query),
                key=self._operand(key),
                value=self._operand(value),
                scale=scale,
                mask=mask,
            )
        )

    def product(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Of two activations, or of one with a weight."""
        sides, place = factors(name, args, kwargs), place_of_result(out)
        if place is None or sides is None:
            return
        left, right = sides
        self._enter(left, right)
        live = self.is_live(left), self.is_live(right)
        if all(live):
            values = [other for side, other in ((left, right), (right, left)) if self._is_weight(side)]
            self.products[place.node] = Product(
                where=self.names.here(),
                place=place,
                shape=out.shape,
                left=self._operand(left),
                right=self._operand(right),
                d_k=contracted(name, args, left, right),
                alpha=float(kwargs.get("alpha", 1)),
                mixes=bool(values),
            )
            for value in values:
                self.size(Role.VALUE, value)
                self.size(Role.MIX, out)
            return
        layer = name == "linear" or name in CONVOLUTIONS
        both = left.requires_grad and right.requires_grad
        # A constant matrix, such as a Fourier transform, is part of the way; two weights make a weight.
        if not layer and (not both if any(live) else both or not (left.requires_grad or right.requires_grad)):
            return
        turned = not layer and (live[1] if any(live) else left.requires_grad)
        read, weight = (right, left) if turned else (left, right)
        self.projection(place, read, weight)
        if not any(live):
            self.origins.add(place)  # a projected table of relative positions is an activation from here on

    def projection(self, place: Place, read: Tensor, weight: Tensor | None) -> None:
        """A product with a weight, whose place is known."""
        self._enter(read)
        where, operand = self.names.here(), self._operand(read)
        self.projections[place.node] = Projection(where=where, weight=weight, read=operand, place=place)

    def softmax(self, out: Tensor, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> None:
        """Over anything; whether products lie behind it is asked later. The parameters are torch's."""
        axis = (-1 if dim is None else dim) % out.dim()
        where, place = self.names.here(), place_of(input)
        self.attention.append(Softmax(where=where, place=place, values=input.detach(), axis=axis))
        if (after := place_of(out)) is not None:
            self.weights[after.node] = after

    def look_up(self, name: str, out: Tensor, operands: Sequence[Tensor]) -> None:
        """Rows of a table, by whatever function."""
        ids = [x for x in operands if x.dtype in (torch.int32, torch.int64)]
        tables = [x for x in operands if x.is_floating_point() and x.dim() == 2 and not self.is_live(x)]
        if len(ids) != 1 or len(tables) != 1 or out.shape != (*ids[0].shape, tables[0].shape[1]):
            return
        if name != "embedding" and not tables[0].requires_grad:
            return  # rows of a constant are no embedding: they may be the cosines of a rotation
        place = place_of(out if out.requires_grad else out.requires_grad_())
        assert place is not None, "it was made to require a gradient"
        self.origins.add(place)
        self.lookups.append(
            LookUp(
                where=self.names.here(),
                table=tables[0],
                ids=ids[0],
                token=tells_tokens(ids[0], self.given),
                turned=_turned(ids[0], self.given),
                place=place,
                rms=rms(out),
            )
        )

    def norm(self, out: Tensor, read: Tensor) -> None:
        """A norm, known by its function or by the name of its module."""
        place = place_of(out)
        if place is not None and place.node not in self.norms:
            self.offer(read)
            self.norms[place.node] = place
            self.size(Role.NORM, out)

    def addition(self, out: Tensor, sides: Sequence[Tensor]) -> None:
        """A residual connection is a sum of something with a function of itself."""
        if len(sides) != 2 or sides[0].shape != sides[1].shape or sides[0].dim() < 2:
            return
        nodes = [(x.grad_fn, x) for x in sides if x.grad_fn is not None and self.is_live(x)]
        if len(nodes) == 2 and nodes[0][0] is not nodes[1][0]:
            (older, _), (newer, branch) = sorted(nodes, key=lambda pair: pair[0]._sequence_nr())
            if comes_from(newer, older):
                self.size(Role.BRANCH, branch)
                self.size(Role.STREAM, out)

    def restart(self, name: str, out: Tensor, read: Tensor) -> None:
        """A quantised layer has no gradient: the graph begins anew behind it."""
        place = place_of(out.requires_grad_())
        assert place is not None, "it was made to require a gradient"
        self.projection(place, read, None)
        self.origins.add(place)
        self.opaque.append((self.names.here(), name))

    def size(self, role: Role, x: Tensor) -> None:
        """The rms of what stands at a place of its own."""
        self.sizes.append(Size(where=self.names.here(), role=role, rms=rms(x)))

    def offer(self, x: Tensor) -> list[LookUp]:
        """Notes a tensor as perhaps what enters the model. Returns the open look-ups that are behind it."""
        behind = self.origins.of(x.grad_fn)
        found = [lookup for lookup in self.lookups if lookup.open and lookup.place.node in behind]
        place = place_of(x) if found else None
        for lookup in found:
            if place is not None and x.shape.numel() == lookup.place.shape.numel():
                lookup.candidates.setdefault(place.node, Candidate(place=place, operand=self._operand(x)))
        return found

    def _enter(self, *read: Tensor) -> None:
        """A product reads the rows: here, at the latest, they have entered the model."""
        for lookup in [lookup for x in read for lookup in self.offer(x)]:
            lookup.open = False

    def _operand(self, x: Tensor) -> Operand:
        value = x.detach().clone() if self.values else None
        return Operand(place=place_of(x), rms=rms(x), shape=x.shape, value=value)

    def _is_weight(self, x: Tensor) -> bool:
        """Whether it is what a softmax returned, give or take dropout and reshaping."""
        if x.grad_fn is None or not self.weights:
            return False
        met, _ = walk_back([x.grad_fn], {**self.beginnings, **self.weights})
        return any(node in self.weights for node in met)


def tells_tokens(ids: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether ids are tokens rather than positions, distances or segments.

    These are the same in every row, or have other rows than what the model was given. Ids without rows are compared.
    """
    if ids.dim() > 1 and ids.shape[0] > 1 and ids.shape[-1] > 1:
        rows = any(other.dim() > 1 and other.shape[0] == ids.shape[0] for other in given)
        return (rows or _turned(ids, given)) and bool((ids != ids[:1]).any()) and bool((ids != ids[..., :1]).any())
    return any(ids.numel() == other.numel() and torch.equal(ids.flatten(), other.flatten()) for other in given)


def _turned(ids: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether ids stand as (positions, rows), the other way round than the model was given them."""
    shapes = {tuple(other.shape) for other in given}
    return ids.dim() == 2 and tuple(ids.shape) not in shapes and tuple(ids.mT.shape) in shapes
