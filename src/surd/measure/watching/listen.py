"""The listener: hears a forward that somebody else runs, and reads attention and residual stream as they pass.

Unlike the tap of a probe it needs no forward of its own and no gradient, and so must leave this one alone: it draws no
random number, keeps nothing alive, and hands on every result as it is.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.calling.swapped import swapped
from surd.measure.sites import Unseen
from surd.measure.softmax.sampled import read_products
from surd.measure.tensors import storage
from surd.measure.trace.explain import explain
from surd.measure.trace.kernel import fits
from surd.measure.trace.naming import Names
from surd.measure.trace.tap import ADDITIONS, FUSED, MULTI_HEAD, SOFTMAXES, opened
from surd.measure.watching.additions import Additions
from surd.measure.watching.scores import Scores
from surd.measure.watching.vitals import AttentionVitals, StreamVitals

PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "baddbmm", "baddbmm_")
"""Calls that may multiply queries and keys; `linear` and `addmm` multiply with weights."""
CARRIED = ("masked_fill", "where", "float", "to", "type_as", "clone", "contiguous")
"""Calls after which a constant that was added is still in the scores."""


class Listener(TorchFunctionMode):
    """Opened for a forward of a model; afterwards it tells what was heard."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        names = Names(model)
        self._scores = Scores(names, {storage(parameter) for parameter in model.parameters()} - {None})
        self._additions = Additions(names)

    @property
    def attention(self) -> tuple[AttentionVitals, ...]:
        """Every attention, in the order of the calls."""
        return self._scores.vitals()

    @property
    def stream(self) -> tuple[StreamVitals, ...]:
        """The residual stream after each addition."""
        return self._additions.vitals()

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """What could not be looked into."""
        return tuple(self._scores.unseen)

    @contextmanager
    def installed(self) -> Generator[None]:
        """Open for a forward; nothing stays behind."""
        original = vars(torch.autograd.Function)["apply"]

        def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            return self._custom(cls.__qualname__, lambda: original.__func__(cls, *args, **kwargs), args, kwargs)

        with ExitStack() as stack:
            stack.callback(self._additions.finish)
            stack.callback(self._scores.finish)
            stack.enter_context(swapped(torch.autograd.Function, apply=classmethod(apply)))
            stack.enter_context(self)
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        if name == MULTI_HEAD:
            return self._multi_head(func, args, kwargs)
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
            return self._custom(str(func), lambda: func(*args, **kwargs), args, kwargs)
        if name == FUSED:
            self._read(self._scores.fused, *args, **kwargs)  # before the call, which may change its arguments
        added = self._scores.constants(args[0]) if args else []
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point():
            if name in SOFTMAXES:
                self._read(self._scores.softmax, *args, **kwargs)
            elif name in PRODUCTS:
                self._read(self._scores.product, name, out, args, kwargs)
            elif name in ADDITIONS:
                self._read(self._sum, out, [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)])
            elif name in CARRIED and added:
                self._scores.carried(out, added)
        return out

    def _read(self, read: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """What cannot be read is said; a training is not to end because it was watched."""
        try:
            read(*args, **kwargs)
        except Exception as error:
            self._scores.not_seen(f"reading it raised {type(error).__name__}: {error}")

    def _multi_head(self, func: Any, args: Any, kwargs: Any) -> Any:
        """torch's own multi-head attention, whose inner calls are what matters."""
        before = self._scores.heads
        self._scores.heads = kwargs.get("num_heads", args[4] if len(args) > 4 else None)
        try:
            with opened(), self:
                return func(*args, **kwargs)
        finally:
            self._scores.heads = before

    def _sum(self, out: Tensor, sides: list[Tensor]) -> None:
        if len(sides) != 2:
            return
        first, second = sides
        if first.requires_grad and second.requires_grad:
            self._additions.note(out, first, second)
        elif first.requires_grad:
            self._scores.added(out, first, second)
        elif second.requires_grad:
            self._scores.added(out, second, first)

    def _custom(self, name: str, run: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of somebody's own: what it calls is heard as well, but a kernel calls nothing."""
        count = len(self._scores.found)
        out = run()
        if len(self._scores.found) == count and isinstance(out, Tensor) and out.is_floating_point():
            with torch._C.DisableTorchFunction():  # nothing that is computed here is to be heard
                self._read(self._result, name, out, args, kwargs)
        return out

    def _result(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Of a custom function inside which nothing attended: it does so itself, or adds, or neither."""
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        if len(operands) >= 3 and fits(*operands[:3]) and self._scores.active(*operands[:3]):
            found = explain(out, args, kwargs)
            if found is None:
                self._scores.not_seen(f"{name} does not compute softmax(c · q · k) v as its arguments let expect")
            else:
                reading = read_products(found.query, found.key, found.scale, found.mask, found.causal)
                self._scores.note(found.query.shape[1], reading)
        elif len(operands) >= 2:
            self._additions.note(out, operands[0], operands[1])
