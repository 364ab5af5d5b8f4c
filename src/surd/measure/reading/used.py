"""Used: which part each weight plays in a forward, told by what it reads and what it feeds, and never by its name."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from surd.measure.reading.factors import sides
from surd.measure.sites import Role
from surd.measure.trace.calls import Fused, Projection, Seen
from surd.measure.trace.gains import signs
from surd.measure.trace.graph import Place, Stops, parents, walk_back
from surd.measure.trace.notes import Notes
from surd.measure.use import Part, Use


def read_uses(notes: Notes, head: Tensor | None) -> list[Use]:
    """Every use of a parameter that was seen; `head` is the matrix that makes the logits."""
    found = _Uses(notes, head)
    return [*found.tables(), *found.attention(), *found.others(), *found.norms()]


class _Uses:
    def __init__(self, notes: Notes, head: Tensor | None) -> None:
        self.notes, self.head = notes, head
        self.stops = {node: one.place for node, one in notes.projections.items()}
        streams = [size.seen.place for size in notes.sizes if size.site.role is Role.STREAM]
        everywhere = {**self.stops, **notes.origins.places}
        self.streams = {place.node: place for place in streams if place is not None and _joins(place, everywhere)}
        self.mixes: dict[Node, tuple[Place, int]] = {}
        self.parts: dict[Node, set[Part]] = {}

    def tables(self) -> Iterator[Use]:
        """Looked-up rows; positions that are no table are met in `others`."""
        for lookup in self.notes.lookups:
            part = Part.TABLE if lookup.token else Part.POSITIONS
            rows, width = lookup.table.shape
            for leaf in _leaves(lookup.table):
                if leaf.dim() == 0 or leaf.shape[0] != rows:
                    continue  # turned to be looked up, or makes a table with another one: LoRA's A is so
                yield self._use(leaf, part, lookup.where.path, fan_in=width, fan_out=rows)

    def attention(self) -> Iterator[Use]:
        """Query, key and value of every attention that is noted in the trace."""
        number = 0
        for call in self.notes.attention:
            asked = sides(self.notes, call)
            if asked is None:
                continue
            if isinstance(call, Fused):
                value, mix = call.value, call.mix
            else:
                value, mix = call.mixed[0] if call.mixed else (None, None)
            if mix is not None and mix.place is not None:
                self.mixes[mix.place.node] = mix.place, number
            operands = {Part.QUERY: asked[0], Part.KEY: asked[1], Part.VALUE: value}
            reached = {part: self._behind(one) for part, one in operands.items() if one is not None}
            for part, projections in reached.items():
                for node in projections:
                    self.parts.setdefault(node, set()).add(part)
                    shared = sum(node in other for other in reached.values()) > 1
                    operand = operands[part]
                    assert operand is not None, "only operands that exist have something behind them"
                    yield from self._operand(self.notes.projections[node], part, number, operand if shared else None)
            number += 1

    def others(self) -> Iterator[Use]:
        """All other projections: what each reads tells which it is."""
        mixes = {node: place for node, (place, _) in self.mixes.items()}
        stops = {**self.stops, **mixes, **self.streams, **self.notes.origins.places}
        reads: dict[Node, set[Node]] = {}
        added: dict[int, tuple[Tensor, str]] = {}
        for node, one in self.notes.projections.items():
            if one.read.place is None:
                continue
            met, passed = walk_back([one.read.place.node], stops)
            reads[node] = set(met)
            added |= {id(leaf): (leaf, one.where.path) for leaf in self._added(passed)}
        for node, place in self.streams.items():
            _, passed = walk_back(parents(node), {**stops, node: place})
            added |= {id(leaf): (leaf, "") for leaf in self._added(passed)}
        for leaf, path in added.values():
            yield self._use(leaf, Part.POSITIONS, path, fan_in=leaf.shape[-1], fan_out=leaf.numel() // leaf.shape[-1])
        outputs: dict[Node, int] = {}
        for node, one in self.notes.projections.items():
            if node in self.parts:
                continue
            if self.head is not None and one.weight is self.head:
                self.parts[node] = {Part.HEAD}
                continue
            met = reads.get(node, set())
            if met & mixes.keys() and not met & self.streams.keys():
                self.parts[node] = {Part.OUT}
                outputs[node] = next(self.mixes[one][1] for one in met if one in mixes)
            elif met and met <= self.stops.keys() and not any(one in self.parts for one in met):
                self.parts[node] = {Part.OUTER}
                for inner in met:
                    self.parts[inner] = {Part.INNER}
        for node, one in self.notes.projections.items():
            (part, *_) = self.parts.get(node, {Part.LAYER})
            if part not in (Part.QUERY, Part.KEY, Part.VALUE):
                yield from self._projection(one, part, outputs.get(node))

    def norms(self) -> Iterator[Use]:
        """Vectors that multiply, or are added to, what a norm has normalised."""
        beginnings = {**self.stops, **self.notes.origins.places, **self.streams}
        for node in self.notes.norms:
            others = {**beginnings, **{other: where for other, where in self.notes.norms.items() if other is not node}}
            others.pop(node, None)
            _, passed = walk_back([node], others)
            for step in passed:
                branches = [parent for parent, _ in step.next_functions]
                live = [parent is not None and bool(self.notes.origins.of(parent)) for parent in branches]
                if not any(live):
                    continue
                for number, (parent, flows) in enumerate(zip(branches, live, strict=True)):
                    if parent is None or flows:
                        continue
                    whole = "Norm" in step.name()
                    part = (Part.GAIN if number == 1 else Part.BIAS) if whole else _vector_part(step)
                    for leaf in _leaves_of(parent):
                        if part is not None and leaf.numel() > 1 and leaf.numel() == max(leaf.shape):
                            yield self._use(leaf, part, "", fan_in=leaf.numel(), fan_out=leaf.numel())

    def _behind(self, operand: Seen) -> list[Node]:
        if operand.place is None:
            return []
        met, _ = walk_back([operand.place.node], {**self.stops, **self.notes.origins.places})
        return [node for node in met if node in self.notes.projections]

    def _operand(self, one: Projection, part: Part, number: int, shared: Seen | None) -> Iterator[Use]:
        """A projection of query, key or value; of a packed one only what reaches that operand."""
        for use, leaf in zip(self._projection(one, part, number), self._leaves(one), strict=True):
            picked = None if shared is None or shared.place is None else _reached(shared.place, leaf)
            if picked is None:
                yield use
            else:
                yield _picked(use, leaf, *picked, number)

    def _projection(self, one: Projection, part: Part, number: int | None) -> Iterator[Use]:
        for leaf in self._leaves(one):
            fan_out = max(1, leaf.numel() // one.fan_in)
            use = self._use(leaf, part, one.where.path, fan_in=one.fan_in, fan_out=fan_out, attention=number)
            # One of several matrices in a stack; experts are as many, and each costs a gradient of them all.
            weight = one.weight if number is not None else None
            picked = None if weight is None or weight.numel() >= leaf.numel() else _taken(weight, leaf)
            yield use if picked is None else _picked(use, leaf, *picked, number)

    def _leaves(self, one: Projection) -> list[Tensor]:
        return [] if one.weight is None else [x for x in _leaves(one.weight) if x.dim() > 1]

    def _use(self, leaf: Tensor, part: Part, path: str, **sizes: int | None) -> Use:
        return Use(name=self.notes.names.parameter(leaf, path), part=part, path=path, **sizes)  # pyrefly: ignore

    def _added(self, passed: list[Node]) -> Iterator[Tensor]:
        """Parameters with several rows that a sum on the way adds to what depends on the input."""
        for node in passed:
            if node.name().startswith("Add"):
                branches = parents(node)
                dead = [branch for branch in branches if not self.notes.origins.of(branch)]
                for branch in dead if len(dead) < len(branches) else ():
                    yield from (x for x in _leaves_of(branch) if x.dim() > 1 and x.numel() > x.shape[-1])


def _picked(use: Use, leaf: Tensor, axis: int, places: tuple[int, ...], number: int | None) -> Use:
    """The use of a part of a weight."""
    numbers = leaf.numel() // leaf.shape[axis] * len(places)
    fan_out = max(1, numbers // use.fan_in)
    return replace(use, fan_out=fan_out, attention=number, axis=axis, places=places)


def _joins(place: Place, stops: Stops) -> bool:
    """Whether a sum is of different things, and not of x and x³ in a smooth nonlinearity."""
    sources = [walk_back([branch], stops)[0].keys() for branch in parents(place.node)]
    return len(sources) == 2 and sources[0] != sources[1]


def _vector_part(step: Node) -> Part | None:
    if step.name().startswith(("Mul", "Div")):
        return Part.GAIN
    return Part.BIAS if step.name().startswith(("Add", "Sub")) else None


def _leaves(weight: Tensor) -> list[Tensor]:
    """The parameters that a weight is, or is made from: one for a view, two for a base with an adapter."""
    if isinstance(weight, nn.Parameter) or weight.grad_fn is None:
        return [weight] if weight.requires_grad else []
    return _leaves_of(weight.grad_fn)


def _leaves_of(node: Node) -> list[Tensor]:
    _, passed = walk_back([node], {})
    return [one.variable for one in passed if one.name().endswith("AccumulateGrad")]  # pyrefly: ignore


def _reached(place: Place, leaf: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """Along which axis of a weight the entries lie that an operand depends on; None when it is all of them."""
    return _felt([place.edge], leaf, signs(place))


def _taken(weight: Tensor, leaf: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """The same of the entries that a weight was cut from."""
    return _felt([weight], leaf, torch.ones_like(weight))


def _felt(what: Sequence[Any], leaf: Tensor, weights: Tensor) -> tuple[int, tuple[int, ...]] | None:
    try:
        moved = torch.autograd.grad(what, [leaf], [weights], retain_graph=True, allow_unused=True)[0]
    except RuntimeError:
        return None
    if moved is None:
        return None
    felt = moved != 0
    for axis in range(felt.dim()):
        along = felt.movedim(axis, 0).flatten(1).any(1)
        if not bool(along.all()):
            return axis, tuple(along.nonzero().flatten().tolist())
    return None
