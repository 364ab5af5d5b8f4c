"""Hearing: one forward in eval mode, and of a loss, under listeners that change nothing; without a graph."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.calling.inputs import Inputs, arguments, replaced
from surd.measure.calling.restore import preserved


def hear(
    module: nn.Module, inputs: Inputs, loss: Callable[[Any], Tensor] | None, *listeners: TorchFunctionMode
) -> None:
    """The listeners keep what they hear. The module is left as it was, and its inputs too."""
    args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
    with preserved(module), torch.no_grad(), ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        output = module(*args, **kwargs)
        if loss is not None:
            loss(output)
