"""Notes on a forward: which calls of torch are projections, products, softmaxes, look-ups, norms or residual sums."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.sites import Role, Site
from surd.measure.tensors import deviation, rms
from surd.measure.trace.calls import Fused, LookUp, Product, Projection, Residual, Seen, Size, Softmax
from surd.measure.trace.gains import HIDDEN
from surd.measure.trace.graph import (
    Origins,
    Place,
    comes_from,
    place_after,
    place_before,
    place_of,
    place_of_result,
    walk_back,
)
from surd.measure.trace.heads import read_rows
from surd.measure.trace.multiples import multiplied, multiplied_back, number_between
from surd.measure.trace.naming import Names, Where
from surd.measure.trace.products import CONVOLUTIONS, contracted, factors
from surd.measure.trace.tokens import tells_tokens, turned

ROUNDED = 0.02
"""How far a sum of half-precision weights may be from 1."""


class Notes:
    """What was called, where it stands in the graph and in the code; gains are computed from it afterwards."""

    def __init__(self, names: Names, given: Sequence[Tensor], values: bool) -> None:
        """`given` are the integers among the inputs; `values` keeps numbers, for runs that compare them."""
        self.names, self.given, self.values = names, given, values
        self.origins = Origins()
        self.inputs: dict[Node, str] = {}
        self.lookups: list[LookUp] = []
        self.features: list[LookUp] = []
        """What is made of inputs that are numbers, before the first norm and the first attention."""
        self.projections: dict[Node, Projection] = {}
        self.products: dict[Node, Product] = {}
        self.attention: list[Softmax | Fused] = []
        self.norms: dict[Node, Place] = {}
        self.outputs: dict[Node, Place] = {}
        self.logits: list[Tensor] = []
        self.sizes: list[Size] = []
        self.residuals: list[Residual] = []
        self.sums: dict[Node, Where] = {}
        """Where residual connections add, by the node of what they return."""
        self.joined: dict[Node, Residual] = {}
        """Residual connections, by the same nodes."""
        self.normed: dict[Node, tuple[Where, Seen]] = {}
        """What a norm read, by the node of what it returned, and where."""
        self.opaque: list[tuple[Where, str]] = []
        self._makers: dict[Node, str] = {}
        self._weights: dict[Node, tuple[Place, Softmax]] = {}
        self._exponents: dict[Node, Place] = {}
        """What exp was called with, by the node of what it returned."""
        self._turn = 0

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

    def fused(self, backend: str, query: Tensor, key: Tensor, value: Tensor, **known: Any) -> Fused:
        """An attention in one call; `known` are its scale, its bias, and scores as they make them, or None for each."""
        self._enter(query, key, attends=True)
        computed = known.pop("scores")
        call = Fused(
            where=self.names.here(),
            backend=backend,
            query=self.see(query),
            key=self.see(key),
            value=self.see(value),
            scores=None if computed is None else self._see_scores(computed, None),
            rows=None if computed is None else read_rows(computed.detach()),
            **known,
        )
        self.attention.append(call)
        return call

    def product(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Of two activations, or of one with a weight."""
        sides, place = factors(name, args, kwargs), place_of_result(out)
        if place is None or sides is None:
            return
        left, right = sides
        live = self.is_live(left), self.is_live(right)
        self._enter(left, right, attends=all(live))
        if all(live):
            seen = self.see(left), self.see(right)
            mixing = [(self._softmaxes_of(x), other) for x, other in zip(sides, reversed(seen), strict=True)]
            self.products[place.node] = Product(
                where=self.names.here(),
                place=place,
                shape=out.shape,
                stride=out.stride() if (out if out._base is None else out._base).is_contiguous() else None,
                left=seen[0],
                right=seen[1],
                d_k=contracted(name, args, left, right),
                alpha=float(kwargs.get("alpha", 1)),
                mixes=any(softmaxes for softmaxes, _ in mixing),
            )
            for softmax, value in ((softmax, value) for softmaxes, value in mixing for softmax in softmaxes):
                softmax.mixed.append((value, self.see(out)))
            return
        layer = name == "linear" or name in CONVOLUTIONS
        both = left.requires_grad and right.requires_grad
        # A constant matrix, such as a Fourier transform, is part of the way; two weights make a weight.
        if not layer and (not both if any(live) else both or not (left.requires_grad or right.requires_grad)):
            return
        turned = not layer and (live[1] if any(live) else left.requires_grad)
        read, weight = (right, left) if turned else (left, right)
        sums = weight.shape[1:].numel() if name in CONVOLUTIONS else contracted(name, args, left, right)
        self.projection(place, read, weight, out, sums)
        if not any(live):
            self.origins.add(place)  # a projected table of relative positions is an activation from here on

    def projection(
        self, place: Place, read: Tensor, weight: Tensor | None, out: Tensor | None = None, fan_in: int | None = None
    ) -> None:
        """A product with a weight, whose place is known; what comes out of it, where that is at hand.

        It sums over `fan_in` numbers, by default over the last axis of what it reads.
        """
        self._enter(read)
        where, seen = self.names.here(), self.see(read)
        sums = read.shape[-1] if fan_in is None else fan_in
        self.projections[place.node] = Projection(where=where, weight=weight, read=seen, place=place, fan_in=sums)
        if weight is not None and out is not None and self.inputs and not self.norms and not self.attention:
            self._feature(where, place, read, weight, out)

    def softmax(self, out: Tensor, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> None:
        """Over anything; whether products lie behind it is asked later. The parameters are torch's."""
        if dim is None:
            dim = 0 if out.dim() in (0, 1, 3) else 1  # as torch.nn.functional.softmax guesses, and warns
        values, axis = input.detach(), dim % max(1, out.dim())
        self._softmax(out, values, place_of(input), axis)

    def exponential(self, out: Tensor, exponent: Tensor | None = None) -> None:
        """A softmax that is written by hand has one; behind a subtraction of the row's logsumexp it is all of it.

        `exponent` is the natural one, where another is at hand.
        """
        after = place_of(out)
        if after is not None and out.dim() > 2 and after.node.name().startswith("Exp"):
            told = place_before(after.node) if exponent is None else place_of(exponent)
            assert told is not None, "the exponential has a gradient"
            self._exponents[after.node] = told
            self.quotient(out)

    def quotient(self, out: Tensor) -> None:
        """What a softmax by hand ends with: exponentials whose rows add up to 1."""
        after = place_of(out)
        if not self._exponents or after is None or after.node in self._weights or out.dim() < 3:
            return
        exponent = next(
            (self._exponents[node] for node in multiplied_back(after.node) if node in self._exponents), None
        )
        if exponent is None or exponent.shape != out.shape:
            return
        weights = out.detach()
        axis = next((axis for axis in reversed(range(out.dim())) if adds_up(weights, axis)), None)
        if axis is not None:
            self._softmax(out, weights.double().log(), exponent, axis)

    def _softmax(self, out: Tensor, values: Tensor, exponent: Place | None, axis: int) -> None:
        scores = self._see_scores(values, exponent, axis)
        call = Softmax(where=self.names.here(), scores=scores, values=values, axis=axis)
        self.attention.append(call)
        if (after := place_of(out)) is not None:
            self._weights[after.node] = after, call

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
                turned=turned(ids[0], self.given),
                place=place,
                rows=self.see(out, keep=True),
            )
        )

    def norm(self, out: Tensor, read: Tensor) -> None:
        """A norm, known by its function or by the name of its module."""
        place = place_of(out)
        if place is not None and place.node not in self.norms:
            self.offer(read)
            self.norms[place.node] = place
            self.normed[place.node] = self.names.here(), self.see(read)
            self._size(Role.NORM, out, self.names.here())

    def output(self, out: Tensor, path: str) -> None:
        """What a module returns; of several that return the same, it is the innermost's."""
        place = place_of(out)
        if place is not None and self.is_live(out):
            self.outputs[place.node] = place
            self._makers.setdefault(place.node, path)

    def branch(self, sides: Sequence[Tensor]) -> bool:
        """Whether a sum, about to be made, is a residual connection: of something with a function of itself."""
        if len(sides) != 2 or sides[0].shape != sides[1].shape or sides[0].dim() < 2:
            return False
        nodes = [(x.grad_fn, x) for x in sides if x.grad_fn is not None and self.is_live(x)]
        if len(nodes) != 2 or nodes[0][0] is nodes[1][0]:
            return False
        (older, carried), (newer, branch) = sorted(nodes, key=lambda pair: pair[0]._sequence_nr())
        factor = 1.0
        if not comes_from(newer, older) and (again := self._normed_again(nodes)) is not None:
            (older, carried), (newer, branch) = again
        elif not comes_from(newer, older):
            # What is carried may have been multiplied by a number, before the branch was made or after it.
            pairs = ((older, carried, newer, branch), (newer, branch, older, carried))
            found = [(multiplied(one), x, other, y) for one, x, other, y in pairs]
            told = [each for each in found if each[0] is not None and self._projected(each[2], each[0])]
            if not told or told[0][0] is None:
                return False
            older, carried, newer, branch = told[0]
            if carried.grad_fn is not None and older is not None and multiplied(newer) is None:
                factor = number_between(carried.grad_fn, older)
        here = self.names.here()
        assert older is not None, "both sides are in the graph"
        residual = Residual(where=here, carried=older, value=carried.detach(), branch=newer, factor=factor)
        self.residuals.append(residual)
        self._size(Role.BRANCH, branch, Where(path=self._makers.get(newer, here.path), file=here.file, line=here.line))
        return True

    def _normed_again(self, nodes: Sequence[tuple[Node, Tensor]]) -> Sequence[tuple[Node, Tensor]] | None:
        """norm(x) beside a function of x that calls the norm once more: what is carried, and the branch."""
        for pair in (nodes, nodes[::-1]):
            (carried, _), (branch, _) = pair
            read = self.normed[carried][1].place if carried in self.normed else None
            if read is not None and comes_from(branch, read.node) and branch not in self.normed:
                return pair
        return None

    def _projected(self, node: Node, older: Node) -> bool:
        """Whether a node comes from an older one by way of a layer."""
        if node is older or not comes_from(node, older):
            return False
        _, passed = walk_back([node], {older: place_after(older)})
        return any(step in self.projections for step in passed)

    def stream(self, out: Tensor) -> None:
        """What a residual connection returns."""
        if out.grad_fn is not None:
            self.sums[out.grad_fn] = self.names.here()
            self.joined[out.grad_fn] = self.residuals[-1]
        self._size(Role.STREAM, out, self.names.here())

    def restart(self, name: str, out: Tensor, read: Tensor) -> Tensor:
        """A quantised layer has no gradient: the graph begins anew with what it returns, which is given back."""
        fresh = out.detach().requires_grad_().clone()  # no leaf: the forward may change it in place
        place = place_of(fresh)
        assert place is not None, "it was made to require a gradient"
        self.projection(place, read, None)
        self.origins.add(place)
        self.opaque.append((self.names.here(), name))
        return fresh

    def offer(self, x: Tensor) -> list[LookUp]:
        """Notes a tensor as perhaps what enters the model. Returns the open look-ups that are behind it."""
        behind = self.origins.of(x.grad_fn)
        found = [lookup for lookup in self.lookups if lookup.open and lookup.place.node in behind]
        found += [
            one for one in self.features if one.open and x.grad_fn is not None and comes_from(x.grad_fn, one.place.node)
        ]
        for lookup in found:
            if x.grad_fn not in lookup.candidates and x.shape.numel() == lookup.place.shape.numel():
                seen = self.see(x, keep=True)
                assert seen.place is not None, "rows are behind it"
                lookup.candidates[seen.place.node] = seen
        return found

    def see(self, x: Tensor, keep: bool = False) -> Seen:
        """A tensor as it is now; `keep` its numbers."""
        value = x.detach().clone() if self.values or keep else None
        self._turn += 1
        return Seen(turn=self._turn, place=place_of(x), rms=rms(x), shape=x.shape, value=value)

    def _see_scores(self, scores: Tensor, place: Place | None, axis: int = -1) -> Seen:
        size, share = deviation(scores.detach(), scores > HIDDEN, axis)
        self._turn += 1
        return Seen(turn=self._turn, place=place, rms=size, share=share, shape=scores.shape, value=None)

    def _size(self, role: Role, x: Tensor, where: Where) -> None:
        site = Site(path=where.path, role=role, file=where.file, line=where.line)
        self.sizes.append(Size(site=site, seen=self.see(x)))

    def _enter(self, *read: Tensor, attends: bool = False) -> None:
        """A product reads the rows: here, at the latest, they have entered the model."""
        for x in read:
            for lookup in self.offer(x):
                lookup.open, lookup.reads, lookup.attended = False, x.detach().clone(), attends

    def _feature(self, where: Where, place: Place, read: Tensor, weight: Tensor, out: Tensor) -> None:
        """A projection of an input that is numbers: its result enters the model as the rows of a table do."""
        if self.origins.of(read.grad_fn) & self.inputs.keys() and out.numel() == place.shape.numel():
            rows = self.see(out, keep=True)
            self.features.append(
                LookUp(where=where, table=weight, ids=weight, token=False, turned=False, place=place, rows=rows)
            )

    def weights_of(self, softmax: Softmax) -> Place | None:
        """What a softmax returned; None outside of the graph."""
        return next((place for place, call in self._weights.values() if call is softmax), None)

    def _softmaxes_of(self, x: Tensor) -> list[Softmax]:
        """Those that made a tensor of weights, give or take dropout and reshaping; of other tensors none."""
        if x.grad_fn is None or not self._weights:
            return []
        weights = {node: place for node, (place, _) in self._weights.items()}
        met, _ = walk_back([x.grad_fn], {**self.beginnings, **weights})
        return [self._weights[node][1] for node in met if node in self._weights]


def adds_up(weights: Tensor, axis: int) -> bool:
    """Whether sums over an axis are 1, or 0 where all is hidden."""
    if weights.shape[axis] < 2:
        return False
    sums = weights.sum(axis, dtype=torch.float32)
    close = (sums - 1).abs() < ROUNDED
    return bool(close.any()) and bool((close | (sums == 0)).all())
