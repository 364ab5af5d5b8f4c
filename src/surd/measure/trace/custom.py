"""Functions of somebody's own: nothing inside one stands in the graph, but it can be run again and asked."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from surd.measure.calling.inputs import tensors
from surd.measure.trace.kernel import Answer, ask, fits


class CustomCall:
    """One call, and what it returned."""

    def __init__(
        self, function: str | type, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.is_operator = isinstance(function, str)
        self.name = function if isinstance(function, str) else function.__qualname__
        self.run, self.args, self.kwargs = run, args, kwargs
        self.out = run(*args, **kwargs)
        self.result: Tensor | None = next(tensors(self.out), None)
        """The first tensor that it returned."""
        self.operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]

    @property
    def is_identity(self) -> bool:
        """Whether it returns what it was given."""
        if len(self.operands) != 1 or not isinstance(self.out, Tensor):
            return False
        (given,) = self.operands
        return self.out.shape == given.shape and self.out.dtype == given.dtype and torch.equal(self.out, given)

    @property
    def has_gradient(self) -> bool:
        """Whether an operator has a gradient; a function has one, except where the forward asks for no graph."""
        node = None if self.result is None else self.result.grad_fn
        return not self.is_operator or not (node is None or "NotImplemented" in node.name())

    def query_key_value(self, is_live: Callable[[Tensor], bool]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Its first three operands, if they can be those of an attention and all come from the input."""
        first = self.operands[:3]
        return (first[0], first[1], first[2]) if len(first) == 3 and all(map(is_live, first)) and fits(*first) else None

    def ask(self, operands: tuple[Tensor, Tensor, Tensor]) -> Answer | None:
        """Calls it again with other queries and values."""

        def kernel(*replacements: Tensor) -> Tensor:
            swap = dict(zip(map(id, operands), replacements, strict=True))
            changed = [swap.get(id(x), x) for x in self.args]
            return next(tensors(self.run(*changed, **{word: swap.get(id(x), x) for word, x in self.kwargs.items()})))

        query, key, value = (x.detach() for x in operands)
        return ask(kernel, query, key, value)
