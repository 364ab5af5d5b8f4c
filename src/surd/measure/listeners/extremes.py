"""Extremes: the largest number that each kind of sum reaches in a forward, and in which type it was to be held."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from surd.measure.calling.hearing import hear
from surd.measure.calling.inputs import Inputs, replaced
from surd.measure.calling.swapped import swapped
from surd.measure.trace.naming import Names
from surd.measure.trace.products import CONVOLUTIONS, PRODUCTS, factors
from surd.measure.trace.tap import ADDITIONS, MULTI_HEAD, opened

SCALINGS = ("mul", "mul_", "__mul__", "__rmul__", "__imul__")
SUMS = ("sum", "cumsum", "pow", "__pow__", "square", *ADDITIONS)
LOSSES = ("cross_entropy", "nll_loss", "cross_entropy_loss")
HALF = (torch.float16, torch.bfloat16)
MASK = -1e3
"""Numbers without any entry as far above zero as some are below this hide keys."""
FILL = 1e30

Key = tuple[str, str, int]
"""Path of the module, name of the call, and its number there."""


@dataclass(frozen=True, kw_only=True)
class Extreme:
    """One call of a forward."""

    site: str
    kind: str
    """`q·k`, `projection`, or the name of the sum."""
    largest: float
    dtype: torch.dtype
    """Of the result, in the forward as it is."""


@dataclass(frozen=True, kw_only=True)
class LossRead:
    """A cross-entropy that was computed in half precision."""

    dtype: torch.dtype
    value: float

    @property
    def quantum(self) -> float:
        """The step between neighbouring numbers of the type at this value."""
        exponent = torch.frexp(torch.tensor(self.value)).exponent.item() - 1
        return float(torch.finfo(self.dtype).eps * 2.0**exponent)


@dataclass(kw_only=True)
class Heard:
    """What one forward told."""

    largest: dict[Key, float] = field(default_factory=dict)
    dtypes: dict[Key, torch.dtype] = field(default_factory=dict)
    kinds: dict[Key, str] = field(default_factory=dict)
    losses: list[LossRead] = field(default_factory=list)


class Hearing(TorchFunctionMode):
    """Hears products and sums; in a replay everything that would be half precision is fp32."""

    def __init__(self, module: nn.Module, replay: bool = False) -> None:
        super().__init__()
        self.heard, self.replay = Heard(), replay
        self._names = Names(module)
        self._counts: dict[tuple[str, str], int] = {}
        self._weights = {id(parameter) for parameter in module.parameters()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        if name == MULTI_HEAD:
            with opened(), self:
                return func(*args, **kwargs)
        if self.replay:
            name, func = ("float", Tensor.float) if name in ("half", "bfloat16") else (name, func)
            args, kwargs = _widened(args), {key: _wide(value) for key, value in kwargs.items()}
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point() and not is_functorch_wrapped_tensor(out):  # under vmap
            if name in PRODUCTS or name in CONVOLUTIONS or name in SUMS or name in SCALINGS:
                self._note(name, out, args, kwargs)
            elif name in LOSSES and out.numel() == 1 and isinstance(args[0], Tensor) and args[0].dtype in HALF:
                self.heard.losses.append(LossRead(dtype=args[0].dtype, value=float(out)))
        return out

    def _note(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        if name in (*ADDITIONS, *SCALINGS) and (any(map(_hides, (out, *operands))) or _one_number(out)):
            return
        path = self._names.here().path
        number = self._counts[path, name] = self._counts.get((path, name), 0) + 1
        key = (path, name, number)
        largest = float(out.detach().abs().nan_to_num(torch.inf).max()) if out.numel() else 0.0
        if out.dtype is not torch.float16 and FILL < largest < torch.inf:
            return  # a smallest number of the type, on its way into a mask
        self.heard.largest[key] = largest
        self.heard.dtypes[key] = out.dtype
        self.heard.kinds[key] = self._kind(name, args, kwargs)

    def _kind(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        sides = factors(name, args, kwargs) if name in PRODUCTS else None
        if sides is None:
            return "projection" if name in CONVOLUTIONS else name.strip("_")
        weighted = name in ("linear", "addmm") or any(id(x) in self._weights for x in sides)
        return "projection" if weighted else "q·k"


def extremes(
    module: nn.Module, inputs: Inputs, loss: Callable[[Any], Tensor] | None = None, heard: Heard | None = None
) -> tuple[list[Extreme], list[LossRead]]:
    """The largest number of every call, as fp32 has it, and the type that the forward holds it in.

    `heard` is what a forward has told already. A model with calls in half precision runs once more, its weights widened
    for the while. It is left as it was.
    """
    if heard is None:
        hearing = Hearing(module)
        hear(module, inputs, loss, hearing)
        heard = hearing.heard
    largest = heard.largest
    if any(dtype in HALF for dtype in heard.dtypes.values()):
        replay = Hearing(module, replay=True)
        inert = {"__enter__": lambda mode: mode, "__exit__": lambda mode, *error: None}
        try:
            with _wide_weights(module), swapped(torch.autocast, **inert):
                hear(module, replaced(inputs, _wide), loss, replay)
            largest = largest | replay.heard.largest
        except Exception:
            pass  # a kernel that takes nothing but half precision: what it gave is all that can be known
    found = [
        Extreme(site=key[0], kind=heard.kinds[key], largest=largest[key], dtype=dtype)
        for key, dtype in heard.dtypes.items()
    ]
    return found, heard.losses


@contextmanager
def _wide_weights(module: nn.Module) -> Generator[None]:
    """Parameters and buffers in fp32 for a while; one that has two names is widened once."""
    held = {id(x): x for x in (*module.parameters(), *module.buffers()) if x.dtype in HALF}
    before = {number: x.data for number, x in held.items()}
    try:
        for x in held.values():
            x.data = x.data.float()
        yield
    finally:
        for number, x in held.items():
            x.data = before[number]


def _hides(x: Tensor) -> bool:
    low, high = (float(x.detach().min()), float(x.detach().max())) if x.numel() > 1 else (0.0, 0.0)
    return low < MASK and high < low * -0.1


def _one_number(x: Tensor) -> bool:
    """Zeros and one large number: a mask on its way to where it hides, which does not grow in a training."""
    x = x.detach()
    largest = x.abs().max() if x.numel() > 1 else x.new_zeros(())
    return bool(largest > -MASK) and bool((x == 0).any()) and bool(((x == 0) | (x.abs() == largest)).all())


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF else value
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF else value


def _widened(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_wide(value) if isinstance(value, torch.dtype) else value for value in args)
