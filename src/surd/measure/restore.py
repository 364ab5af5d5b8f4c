"""Gives a module back as it was: flags, buffers, attributes, random state, and whether its weights want gradients."""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode, every weight is in the graph, and nothing is compiled.

    The model is used in place: a copy would cut ties that are not one parameter and double the memory.
    """
    modules = list(model.modules())
    attributes = [dict(vars(module)) for module in modules]
    # The dicts of parameters, buffers and children are attributes too; what they hold is kept beside them.
    entries = [
        [(held, dict(held)) for held in (module._parameters, module._buffers, module._modules)] for module in modules
    ]
    buffers = [(buffer, buffer._version, buffer.detach().clone()) for buffer in model.buffers()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    python_state = random.getstate()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if "torch._dynamo" in sys.modules:  # else nothing has been compiled, and importing it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            model.eval()
            for parameter, _ in wanted:
                if parameter.is_floating_point():
                    parameter.requires_grad_(True)
            yield
        finally:
            for module, before, held in zip(modules, attributes, entries, strict=True):
                vars(module).clear()
                vars(module).update(before)
                for holder, content in held:
                    holder.clear()
                    holder.update(content)
            with torch.no_grad():
                for buffer, version, content in buffers:
                    if buffer._version != version:
                        buffer.copy_(content)
            for parameter, before in wanted:
                parameter.requires_grad_(before)
            random.setstate(python_state)
