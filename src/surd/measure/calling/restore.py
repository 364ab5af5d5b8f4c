"""Gives a module back as it was: weights, flags, buffers, attributes, random state, and what wants gradients."""

import random
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.calling.swapped import flex_written_out
from surd.measure.tensors import storage

Keep = Callable[[Tensor], None]
"""To be called with a tensor that is about to be written to."""
NUMBERLESS = frozenset({"requires_grad_", "detach_", "share_memory_", "rename_"})
"""Calls whose names say that they write, and that leave every number as it was."""


@contextmanager
def preserved(model: nn.Module, tapped: bool = False) -> Generator[Keep]:
    """Inside, the model is in eval mode, every weight is in the graph, and nothing is compiled.

    The model is used in place: a copy would cut ties that are not one parameter and double the memory. Buffers and
    other tensors that modules hold are copied at once, weights only when a forward is about to change them.
    """
    scripted = [(module, module.training) for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    attributes = [dict(vars(module)) for module in modules]
    # The dicts of parameters, buffers, children and hooks are attributes too; what all such hold is kept beside them.
    held = [value for each in attributes for value in each.values()]
    dicts = [(value, dict(value)) for value in held if isinstance(value, dict)]
    lists = [(value, list(value)) for value in held if isinstance(value, list)]
    tensors = [*model.buffers(), *(value for value in held if isinstance(value, Tensor))]
    contents = [(tensor, tensor.detach().clone()) for tensor in tensors]
    weights = {storage(parameter): parameter for parameter in model.parameters()}
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    generators = [(value, value.get_state()) for value in held if isinstance(value, torch.Generator)]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")  # which a forward can only use where it has been imported
    numpy_state = None if numpy is None else numpy.random.get_state()

    def keep(x: Tensor) -> None:
        weight = weights.pop(memory, None) if (memory := storage(x)) is not None else None
        if weight is not None:
            contents.append((weight, weight.detach().clone()))

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(flex_written_out())
        if not tapped:  # a tap hears what is written to, and calls `keep` itself
            stack.enter_context(_Writes(keep))
        if "torch._dynamo" in sys.modules:  # else nothing has been compiled, and importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for module in model.modules():  # not by eval(), which modules may refuse, or answer by merging weights
                module.training = False
            for parameter, _ in wanted:
                if parameter.is_floating_point():
                    parameter.requires_grad_(True)
            yield keep
        finally:
            for module, before in zip(modules, attributes, strict=True):
                vars(module).clear()
                vars(module).update(before)
            for holder, content in dicts:
                holder.clear()
                holder.update(content)
            for holder, content in lists:
                holder[:] = content
            for module, training in scripted:
                module.training = training
            with torch.no_grad():
                for tensor, content in contents:
                    if not torch.equal(tensor, content):
                        tensor.copy_(content)
            for parameter, before in wanted:
                parameter.requires_grad_(before)
            for generator, state in generators:
                generator.set_state(state)
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


class _Writes(TorchFunctionMode):
    """Tells of a tensor that a call is about to write to."""

    def __init__(self, keep: Keep) -> None:
        super().__init__()
        self._keep = keep

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = changed_by(getattr(func, "__name__", "").split(".")[0], args, kwargs)
        if written is not None:
            self._keep(written)
        return func(*args, **kwargs)


def changed_by(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What a call writes to: `mul_`, `__imul__`, `__setitem__`; `embedding` shortens rows of its table if told so."""
    ends = name.endswith("_") and not name.endswith("__") and name not in NUMBERLESS
    writes = ends or name.startswith("__i") or name == "__setitem__"
    target = kwargs.get("out", args[0] if writes and args else None)
    if name == "embedding" and ((len(args) > 3 and args[3] is not None) or kwargs.get("max_norm") is not None):
        target = args[1] if len(args) > 1 else kwargs["weight"]
    return target if isinstance(target, Tensor) else None
