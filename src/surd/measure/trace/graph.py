"""Places in the autograd graph: fixed when seen, found again by walking back, and known by what they come from."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


@dataclass(frozen=True, eq=False)
class Place:
    """An edge of the graph and what a gradient there looks like.

    An edge stays where it was when the tensor is later changed in place; the tensor itself would move on.
    """

    edge: GradientEdge
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def node(self) -> Node:
        """The function that made what flows here."""
        return self.edge.node


COPIES = ("Expand", "Repeat")
LAYOUTS = (*COPIES, "Alias", "Clone", "Permute", "Reshape", "Squeeze", "Transpose", "UnsafeView", "Unsqueeze", "View")
"""Nodes that only copy and arrange."""
Stops = Mapping[Node, Place]
"""Where a walk back through the graph ends."""


def place_of(x: Tensor) -> Place | None:
    """Where a tensor stands in the graph now; None when it has no part in it."""
    return Place(get_gradient_edge(x), x.shape, x.dtype, x.device) if x.requires_grad else None


def place_of_result(out: Tensor) -> Place | None:
    """Where the result of a call stands. When it is a view of what was computed, that is the place.

    A change in place replaces the node of a view, but what was computed stays behind it.
    """
    base = out._base
    return place_of(out if base is None or base.numel() != out.numel() else base)


def place_after(node: Node) -> Place:
    """The first output of a node of the graph."""
    flows = node._input_metadata[0]  # pyrefly: ignore[missing-attribute]
    return Place(GradientEdge(node, 0), torch.Size(flows.shape), flows.dtype, flows.device)


def place_before(node: Node) -> Place:
    """The first input of an elementwise node, which has the shape of its output."""
    after = place_after(node)
    parent, output = node.next_functions[0]
    assert parent is not None, "an elementwise node that is passed has an input in the graph"
    return Place(GradientEdge(parent, output), after.shape, after.dtype, after.device)


def parents(node: Node) -> list[Node]:
    """The nodes whose outputs a node reads."""
    return [parent for parent, _ in node.next_functions if parent is not None]


def walk_back(starts: Iterable[Node], stops: Stops) -> tuple[dict[Node, Place], list[Node]]:
    """The first stops on every way back from `starts`, and the nodes passed before them, nearest first."""
    met: dict[Node, Place] = {}
    passed: list[Node] = []
    queue = deque(starts)
    seen = set(queue)
    while queue:
        node = queue.popleft()
        if node in stops:
            met[node] = stops[node]
            continue
        passed.append(node)
        for parent in parents(node):
            if parent not in seen:
                seen.add(parent)
                queue.append(parent)
    return met, passed


def before_copies(place: Place) -> GradientEdge:
    """Where a tensor stood before it was repeated for several heads, if it was and nothing else has been done to it.

    The gradient of what is copied is the sum over the copies.
    """
    found, node = place.edge, place.node
    while node.name().startswith(LAYOUTS):
        before, output = node.next_functions[0]
        if before is None:
            break
        found = GradientEdge(before, output) if node.name().startswith(COPIES) else found
        node = before
    return found


def comes_from(node: Node, older: Node) -> bool:
    """Whether a way leads back from `node` to `older`; nodes that are older still are not asked."""
    age = older._sequence_nr()  # pyrefly: ignore[missing-attribute]
    stack, seen = [node], {node}
    while stack:
        top = stack.pop()
        if top is older:
            return True
        for parent in parents(top):
            if parent not in seen and parent._sequence_nr() >= age:  # pyrefly: ignore[missing-attribute]
                seen.add(parent)
                stack.append(parent)
    return False


class Origins:
    """From which sources (looked-up rows, inputs) every node comes; each node of the graph is asked only once."""

    def __init__(self) -> None:
        self._known: dict[Node, frozenset[Node]] = {}
        self.places: dict[Node, Place] = {}

    def add(self, place: Place) -> None:
        """Declares a source: whatever lies behind it no longer counts."""
        self._known[place.node] = frozenset([place.node])
        self.places[place.node] = place

    def of(self, node: Node | None) -> frozenset[Node]:
        """The sources behind a node; none for a weight or a constant."""
        if node is None:
            return frozenset()
        stack = [node]
        while stack:
            top = stack[-1]
            behind = parents(top)
            if top in self._known:
                stack.pop()
            elif unknown := [parent for parent in behind if parent not in self._known]:
                stack.extend(unknown)
            else:
                self._known[top] = frozenset().union(*(self._known[parent] for parent in behind))
        return self._known[node]
