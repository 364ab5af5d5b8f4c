"""The tap: hears every call of torch in a forward, also where code or settings would hide it, and takes notes."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from surd.measure.graph import place_of
from surd.measure.inputs import tensors
from surd.measure.kernel import fits, kernel_scale
from surd.measure.naming import Names
from surd.measure.notes import Notes
from surd.measure.products import CONVOLUTIONS, PRODUCTS
from surd.measure.restore import Keep
from surd.measure.sites import Role

NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize")
SOFTMAXES = ("softmax", "_softmax", "special_softmax")
LOOK_UPS = ("embedding", "index_select", "__getitem__")
ADDITIONS = ("add", "add_", "__add__", "__iadd__", "__radd__")
FUSED = "scaled_dot_product_attention"
MULTI_HEAD = "multi_head_attention_forward"


class Tap(TorchFunctionMode):
    """Changes nothing that is computed, only whether a graph of it is kept."""

    def __init__(
        self, model: nn.Module, keep: Keep, given: Sequence[Tensor], *, values: bool = False, suspend: bool = True
    ) -> None:
        """`suspend` keeps the graph where the forward asks for none; `given` and `values` are for the notes."""
        super().__init__()
        self.model, self.keep, self.suspend = model, keep, suspend
        self.notes = Notes(Names(model), given, values)
        self._deaf = False

    @contextmanager
    def installed(self) -> Generator[None]:
        """Open for the forward of the model; nothing stays behind."""
        with ExitStack() as stack:
            for module in self.model.modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                    stack.callback(module.register_forward_hook(self._leave).remove)
            original = vars(torch.autograd.Function)["apply"]

            def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
                return self._custom(cls, lambda *a, **k: original.__func__(cls, *a, **k), args, kwargs)

            stack.enter_context(_swapped(torch.autograd.Function, apply=classmethod(apply)))
            if self.suspend:
                inert = {"__enter__": lambda mode: None, "__exit__": lambda mode, *error: None}
                stack.enter_context(_swapped(torch.inference_mode, **inert))
            stack.enter_context(self)
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._deaf:
            return func(*args, **kwargs)
        if func is torch._C._set_grad_enabled and self.suspend:
            return None  # torch.no_grad in a forward would cut the graph
        name = getattr(func, "__name__", "").split(".")[0]  # torch.export adds the overload: "bmm.default"
        if name == MULTI_HEAD:
            # It is one call to a tap. Told that nobody listens, it goes on to its inner calls, where we do.
            with _swapped(F, has_torch_function=lambda arguments: False), self:
                return func(*args, **kwargs)
        if _is_custom(func):
            return self._custom(str(func), func, args, kwargs)
        if _writes(name) and args and isinstance(args[0], Tensor):
            self.keep(args[0])
        if name == FUSED:
            self._fused(*args, **kwargs)  # before the call, which may change its arguments
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point():
            self._note(name, out, args, kwargs)
        return out

    def _note(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if name in PRODUCTS or name in CONVOLUTIONS:
            self.notes.product(name, out, args, kwargs)
        elif name in SOFTMAXES:
            self.notes.softmax(out, *args, **kwargs)
        elif name in LOOK_UPS:
            self.notes.look_up(name, out, operands)
        elif name.removeprefix("native_") in NORMS and operands:
            self.notes.norm(out, operands[0])
        elif name in ADDITIONS:
            self.notes.addition(out, operands)
        elif name == FUSED:
            self.notes.size(Role.MIX, out)

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """The parameters are those of torch's function."""
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        self.notes.fused("sdpa", query, key, value, scale, attn_mask)

    def _custom(
        self, function: str | type, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A function of somebody's own. Nothing inside it stands in the graph, but it can be asked."""
        if function is CheckpointFunction:
            return args[0](*args[2:])  # without its no_grad, the graph is whole
        if self._deaf:
            return run(*args, **kwargs)
        notes = self.notes
        with self._not_listening():
            out = run(*args, **kwargs)
            result = next(tensors(out), None)
            operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
            if result is None or not result.is_floating_point() or not any(map(notes.is_live, operands)):
                return out
            if result is out and len(operands) == 1 and _same(out, operands[0]):
                # It only changes gradients. A scale is what the forward does, so the identity gets the identity's.
                return operands[0].view_as(operands[0])
            name = function if isinstance(function, str) else function.__qualname__
            place = place_of(result)
            weights = [x for x in operands if x.requires_grad and x.dim() == 2 and not notes.is_live(x)]
            if len(operands) >= 3 and all(map(notes.is_live, operands[:3])) and fits(*operands[:3]):
                self._ask(name, run, args, kwargs, operands[:3])
            elif place is None and result is out and isinstance(function, str):
                notes.restart(name, out, operands[0])
            elif place is not None and "norm" in name.lower():
                notes.norm(result, operands[0])
            elif place is not None and weights:
                notes.projection(place, operands[0], weights[0])
        return out

    def _ask(
        self, name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
    ) -> None:
        """An attention kernel, called again with other queries and values."""
        query, key, value = operands

        def kernel(*replacements: Tensor) -> Tensor:
            swap = dict(zip(map(id, operands), replacements, strict=True))
            changed = [swap.get(id(x), x) for x in args]
            return next(tensors(run(*changed, **{word: swap.get(id(x), x) for word, x in kwargs.items()})))

        scale = kernel_scale(kernel, query.detach(), key.detach(), value.detach())
        self.notes.fused(name, query, key, value, scale, None)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._deaf and any(lookup.open for lookup in self.notes.lookups):
            with self._not_listening():
                for x in tensors((args, kwargs)):
                    self.notes.offer(x)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if self._deaf:
            return
        normed = "norm" in type(module).__name__.lower() and args and isinstance(args[0], Tensor)
        with self._not_listening():
            for x in tensors(out):
                place = place_of(x)
                if place is not None and self.notes.is_live(x):
                    self.notes.outputs[place.node] = place
                    if normed:
                        self.notes.norm(x, args[0])

    @contextmanager
    def _not_listening(self) -> Generator[None]:
        """What is called inside belongs to the tap, or to a function that is not in the graph."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False


def _writes(name: str) -> bool:
    """Whether a call changes its first argument: `mul_`, `__imul__`, `__setitem__`."""
    return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"


def _is_custom(function: Any) -> bool:
    """An operator that is not torch's own."""
    if not isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return False
    return not str(function).startswith(("aten.", "prims."))


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second)


@contextmanager
def _swapped(owner: Any, **replacements: Any) -> Generator[None]:
    """Attributes replaced for a while, in a class or a module."""
    before = {name: vars(owner)[name] for name in replacements}
    try:
        for name, replacement in replacements.items():
            setattr(owner, name, replacement)
        yield
    finally:
        for name, original in before.items():
            setattr(owner, name, original)
