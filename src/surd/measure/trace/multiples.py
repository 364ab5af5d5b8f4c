"""Multiples: places of the graph that differ by a number, give or take layout, as exponentials and their sums do."""

from collections.abc import Iterator

from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.trace.graph import LAYOUTS, parents

STEPS = 12
"""How many nodes are walked from a quotient to the exponential."""


def multiplied(node: Node) -> Node | None:
    """What stands before a multiplication by a number, give or take layout; None where there is none."""
    source, found = node, False
    while len(behind := parents(source)) == 1 and source.name().startswith(("Mul", "Div", *LAYOUTS)):
        found = found or source.name().startswith(("Mul", "Div"))
        source = behind[0]
    return source if found else None


def number_between(node: Node, source: Node) -> float:
    """What multiplications by numbers between the two come to; 1 where something else multiplies, as masks do."""
    product = 1.0
    while node is not source:
        if node.name().startswith(("Mul", "Div")):
            kept = getattr(node, "_saved_other", None)
            kept = kept if isinstance(kept, Tensor) else getattr(node, "_saved_self", None)
            if not isinstance(kept, Tensor) or kept.numel() != 1:
                return 1.0
            product *= float(kept) if node.name().startswith("Mul") else 1 / float(kept)
        node = parents(node)[0]
    return product


def multiplied_back(node: Node) -> Iterator[Node]:
    """Itself and what it is a multiple of, up to masks: of a division the numerator, of a product either side."""
    queue = [node]
    for _ in range(STEPS):
        if not queue:
            return
        node = queue.pop(0)
        yield node
        if node.name().startswith(("Div", "Mul", "Where", "MaskedFill", *LAYOUTS)):
            behind = [parent for parent, _ in node.next_functions]
            queue += [one for one in (behind[:1] if node.name().startswith("Div") else behind) if one is not None]
