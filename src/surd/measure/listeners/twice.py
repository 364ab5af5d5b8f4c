"""Twice: softmaxes, and losses that begin with one, of what is a softmax already."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.trace.naming import Names, Where

SOFTMAXES = ("softmax", "_softmax", "_safe_softmax", "special_softmax", "log_softmax", "special_log_softmax")
LOSSES = ("cross_entropy", "cross_entropy_loss")
FEWEST = 2
"""Classes below which every softmax is 1."""
CLOSE = 1e-3
"""How far from 1 a row of probabilities may add up, in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """One call."""

    where: Where
    name: str
    """`cross_entropy`, or the softmax itself."""
    classes: int
    total: float
    """To what a row of its input adds up, on average."""


class Softmaxes(TorchFunctionMode):
    """Hears every one whose input is probabilities."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = Names(module)
        self.found: list[Again] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        if name in (*SOFTMAXES, *LOSSES):
            given = args[0] if args else kwargs.get("input")
            if isinstance(given, Tensor) and given.is_floating_point() and given.dim():
                with torch._C.DisableTorchFunction():  # other listeners hear the model alone
                    self._hear(name, given.detach(), _axis(name, given, args, kwargs))
        return func(*args, **kwargs)

    def _hear(self, name: str, given: Tensor, axis: int) -> None:
        rows = given.movedim(axis, -1)
        if are_probabilities(rows):
            total = float(rows.float().sum(-1).mean())
            self.found.append(Again(where=self._names.here(), name=name, classes=rows.shape[-1], total=total))


def are_probabilities(x: Tensor) -> bool:
    """Whether every row lies in [0, 1] and adds up to 1, in more ways than one."""
    if x.shape[-1] < FEWEST or not x.numel() or float(x.min()) < 0:
        return False
    sums = x.detach().float().sum(-1)
    return bool((x <= 1).all()) and bool(((sums - 1).abs() < CLOSE).all()) and bool((x != x.flatten()[0]).any())


def _axis(name: str, given: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """That of the classes."""
    if name in LOSSES:
        return 1 if given.dim() > 1 else 0
    axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
    return axis if isinstance(axis, int) else -1
