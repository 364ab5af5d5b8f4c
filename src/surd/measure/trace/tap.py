"""The tap: hears every call of torch in a forward, also where code or settings would hide it, and takes notes."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from surd.measure.calling.inputs import tensors
from surd.measure.calling.restore import Keep, changed_by
from surd.measure.calling.swapped import swapped
from surd.measure.trace.custom import CustomCall
from surd.measure.trace.graph import place_of
from surd.measure.trace.kernel import Answer
from surd.measure.trace.naming import Names
from surd.measure.trace.notes import Notes
from surd.measure.trace.products import CONVOLUTIONS, PRODUCTS, in_pairs
from surd.measure.trace.written import added, attend, few, scores

NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize")
SOFTMAXES = ("softmax", "_softmax", "_safe_softmax", "special_softmax")
LOSSES = ("cross_entropy", "log_softmax", "special_log_softmax")
LOOK_UPS = ("embedding", "index_select", "__getitem__")
EXPONENTIALS = ("exp", "exp_", "exp2")
QUOTIENTS = (
    "div",
    "true_divide",
    "divide",
    "div_",
    "__truediv__",
    "__itruediv__",
    "mul",
    "__mul__",
    "__rmul__",
    "mul_",
)
ADDITIONS = ("add", "add_", "__add__", "__iadd__", "__radd__")
FUSED = "scaled_dot_product_attention"
MULTI_HEAD = "multi_head_attention_forward"


class Tap(TorchFunctionMode):
    """Changes nothing that is computed, only what is kept of it in the graph."""

    def __init__(
        self,
        model: nn.Module,
        keep: Keep,
        given: Sequence[Tensor],
        *,
        values: bool = False,
        suspend: bool = True,
        written_out: bool = False,
    ) -> None:
        """`given` and `values` are for the notes.

        `suspend` keeps the graph where the forward asks for none, and what only changes gradients is left out of it.
        `written_out` computes attention step by step where the forward has one call for it.
        """
        super().__init__()
        self.model, self.keep, self.suspend, self.written_out = model, keep, suspend, written_out
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

            stack.enter_context(swapped(torch.autograd.Function, apply=classmethod(apply)))
            # A checkpoint computes anew in the backward, when nobody listens and nothing is written out: all is kept.
            kept = {"__enter__": lambda hooks: hooks, "__exit__": lambda hooks, *error: None}
            stack.enter_context(swapped(torch.autograd.graph.saved_tensors_hooks, **kept))
            if self.suspend:
                inert = {"__enter__": lambda mode: None, "__exit__": lambda mode, *error: None}
                stack.enter_context(swapped(torch.inference_mode, **inert))
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
            with opened(), self:
                return func(*args, **kwargs)
        if (
            name == "einsum"
            and len(args) > 3
            and isinstance(args[0], str)
            and (pairs := [*in_pairs(args[0], args[1:])])
        ):
            with self:  # it contracts two at a time itself
                made = args[1]
                for equation, number in pairs:
                    made = func(equation, made, args[1 + number])
                return made
        if _is_custom(func):
            with self:  # as where a function's `apply` is called
                return self._custom(str(func), func, args, kwargs)
        if name == FUSED:
            return self._fused(lambda: func(*args, **kwargs), *args, **kwargs)
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if (changed := changed_by(name, args, kwargs)) is not None:
            self.keep(changed)
        joins = name in ADDITIONS and self.notes.branch(operands)  # asked now, as the sum may be made in place
        out = func(*args, **kwargs)
        if joins:
            self.notes.stream(out)
        elif isinstance(out, Tensor) and out.is_floating_point():
            self._note(name, out, operands, args, kwargs)
        return out

    def _note(
        self, name: str, out: Tensor, operands: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if name in PRODUCTS or name in CONVOLUTIONS:
            self.notes.product(name, out, args, kwargs)
        elif name in SOFTMAXES:
            self.notes.softmax(out, *args, **kwargs)
        elif name in EXPONENTIALS and operands:
            self.notes.exponential(out, operands[0] * math.log(2) if name == "exp2" else None)
        elif name in QUOTIENTS:
            self.notes.quotient(out)
        elif name in LOOK_UPS:
            self.notes.look_up(name, out, operands)
        elif name.removeprefix("native_") in NORMS and operands:
            self.notes.norm(out, operands[0])
        elif name in LOSSES:
            self.notes.logits.append(operands[0])

    def _fused(
        self,
        run: Callable[[], Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """The other parameters are those of torch's function."""
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        bias = added(attn_mask, is_causal, query.shape[-2], key.shape[-2], query)
        shown = few(query, key)
        if self.written_out and shown:
            with self:
                return attend(query, key, value, scale, bias)
        computed = scores(query.detach(), key.detach(), scale, bias) if shown else None
        # Noted before the call, which may change its arguments.
        call = self.notes.fused("sdpa", query, key, value, scale=scale, bias=bias, scores=computed)
        out = run()
        call.mix = self.notes.see(out)
        return out

    def _custom(
        self, function: str | type, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A function of somebody's own."""
        if function is CheckpointFunction:
            return args[0](*args[2:])  # without its no_grad, the graph is whole
        if self._deaf:
            return run(*args, **kwargs)
        notes = self.notes
        with self._not_listening():
            call = CustomCall(function, run, args, kwargs)
            out, result, operands = call.out, call.result, call.operands
            if result is None or not result.is_floating_point() or not any(map(notes.is_live, operands)):
                return out
            if self.suspend and call.is_identity:
                # It only changes gradients. A scale is what the forward does, so the identity gets the identity's.
                return operands[0].view_as(operands[0])
            place = place_of(result)
            weights = [x for x in operands if x.requires_grad and x.dim() == 2 and not notes.is_live(x)]
            parts, written = call.query_key_value(notes.is_live), None
            if parts is not None:
                answer = call.ask(parts)
                written = answer if self.written_out and result is out else None
                if written is None:
                    return self._kernel(call, answer, parts, result)
            elif result is out and not call.has_gradient:
                return notes.restart(call.name, out, operands[0])
            elif place is not None and "norm" in call.name.lower():
                notes.norm(result, operands[0])
            elif place is not None and weights:
                notes.projection(place, operands[0], weights[0])
        if parts is None or written is None:
            return out
        query, key, value = (x.movedim(written.axis, -2) for x in parts)
        return attend(query, key, value, written.scale, written.bias).movedim(-2, written.axis)

    def _kernel(
        self, call: CustomCall, answer: Answer | None, parts: tuple[Tensor, Tensor, Tensor], mix: Tensor
    ) -> Any:
        """An attention that stays one call."""
        scale = bias = computed = None
        if answer is not None:
            scale, bias = answer.scale, answer.bias
            query, key = (x.detach().movedim(answer.axis, -2) for x in parts[:2])
            computed = scores(query, key, scale, bias)
        fused = self.notes.fused(call.name, *parts, scale=scale, bias=bias, scores=computed)
        fused.mix = self.notes.see(mix)
        return call.out

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._deaf and any(one.open for one in (*self.notes.lookups, *self.notes.features)):
            with self._not_listening():
                for x in tensors((args, kwargs)):
                    self.notes.offer(x)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if self._deaf:
            return
        normed = "norm" in type(module).__name__.lower() and args and isinstance(args[0], Tensor)
        with self._not_listening():
            for x in tensors(out):
                self.notes.output(x, self.notes.names.of(module))
                if normed and self.notes.is_live(x):
                    self.notes.norm(x, args[0])

    @contextmanager
    def _not_listening(self) -> Generator[None]:
        """What is called inside belongs to the tap, or to a function that is not in the graph."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False


def _is_custom(function: Any) -> bool:
    """An operator that is not torch's own."""
    if not isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return False
    return not str(function).startswith(("aten.", "prims."))


def opened() -> AbstractContextManager[None]:
    """Inside, torch's functions that hide their inner calls from a mode are told that there is none."""
    return swapped(F, has_torch_function=lambda arguments: False)
