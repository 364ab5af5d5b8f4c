"""What a watch hangs on a module: it hears that the loop calls it, keeps the call, and listens when that is due."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surd.measure.trials.culprit import Call
from surd.measure.watching.listen import Listener

MOST_CALLS = 64
"""Calls of one update that are kept."""


class Hooks:
    """Hooks on the modules that a loop calls. Calls without gradients, as evaluations make them, do not count."""

    def __init__(self, model: nn.Module, called: Sequence[nn.Module], due: Callable[[], bool]) -> None:
        """`due` tells whether the update that comes next is to be listened to."""
        self.model, self.due = model, due
        self.calls: list[Call] = []
        """Those of this update: the arguments themselves, not copies."""
        self.listener: Listener | None = None
        self.loss: Tensor | None = None
        """Of the last call's output, if it has one."""
        self._running = 0
        self._open, self._hooks = ExitStack(), ExitStack()
        for module in called:
            if module._compiled_call_impl is not None:
                self._hang_before_compiled(module, module._compiled_call_impl)
                continue
            before = module.register_forward_pre_hook(_Hook(self._before), with_kwargs=True)
            after = module.register_forward_hook(_Hook(self._after), with_kwargs=True, always_call=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)

    def forget(self) -> None:
        """The update is done."""
        self.calls.clear()
        self.listener = self.loss = None

    def close(self) -> None:
        """Leaves the modules as they were found."""
        self._open.close()
        self._hooks.close()
        self.forget()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Calls inside are the watch's own."""
        before, self._running = self._running, 1
        try:
            yield
        finally:
            self._running = before

    def _hang_before_compiled(self, module: nn.Module, compiled: Callable[..., Any]) -> None:
        """A module that was compiled in place has its hooks inside of the compiled code, where nothing can be kept."""

        def heard(*args: Any, **kwargs: Any) -> Any:
            output = None
            self._before(module, args, kwargs)
            try:
                output = compiled(*args, **kwargs)
                return output
            finally:
                self._after(module, args, kwargs, output)

        module._compiled_call_impl = heard
        self._hooks.callback(setattr, module, "_compiled_call_impl", compiled)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        self._running += 1
        if self._running > 1:  # a part of a call that is heard as a whole
            return
        again = any(call.module is module for call in self.calls)  # a further micro-batch: one is enough
        self.calls.append(Call.of(module, args, kwargs))
        del self.calls[:-MOST_CALLS]
        if self.due() and not again and not _is_compiled(module):
            self.listener = self.listener or Listener(self.model)
            self._open.enter_context(self.listener.installed())

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not self._running:
            return
        self._running -= 1
        if self._running == 0:
            self._open.close()
            loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
            self.loss = loss.detach() if isinstance(loss, Tensor) and loss.numel() == 1 else None


class _Hook:
    """Stands at a module for a watch. A copy of the module, in memory or in a file, gets one that does nothing."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _silent, ()


def _silent() -> Callable[..., None]:
    return _nothing


def _nothing(*args: Any) -> None:
    pass


def _is_compiled(model: nn.Module) -> bool:
    """Whether any part of it is."""
    if "torch._dynamo" not in sys.modules:
        return False
    return any(
        m._compiled_call_impl is not None or isinstance(m._modules.get("_orig_mod"), nn.Module) for m in model.modules()
    )
