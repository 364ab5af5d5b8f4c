"""Derivatives of a model's outputs with respect to parameters that are only added to them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surd.measure.calling.inputs import Inputs, arguments, replaced, tensors
from surd.measure.calling.restore import preserved

SEED = 11
STRAY = 1e-3
"""Of the square of a vector's gradient, that is not one factor times what was asked: rounding, where it is added."""


def added_factors(model: nn.Module, inputs: Inputs, names: Sequence[str]) -> dict[str, float]:
    """By what each vector is multiplied on its way into the first output that has its length on the last axis.

    Zero where it does not reach the output; left out where it reaches it otherwise than by being added: an addend moves
    every class by one factor at every position, whatever weights and positions there are. Classes that are overwritten
    stand aside, and so does what all classes of a position lose together, as behind a log-softmax.
    """
    args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
    with preserved(model):
        vectors = dict(model.named_parameters())
        wanted = [vectors[name] for name in names]
        output = _output(list(tensors(model(*args, **kwargs))), wanted[0].numel())
        if output is None or not output.requires_grad:
            return {}
        asked = torch.randn(output.shape, generator=torch.Generator().manual_seed(SEED)).to(output)
        asked = asked - asked.mean(-1, keepdim=True)
        gradients = torch.autograd.grad(output, wanted, asked, allow_unused=True)
    whole = asked.double().flatten(0, -2).sum(0)
    factors = {name: _addend(gradient, whole) for name, gradient in zip(names, gradients, strict=True)}
    return {name: factor for name, factor in factors.items() if factor is not None}


def _addend(gradient: Tensor | None, whole: Tensor) -> float | None:
    """The factor; None where the gradient is something else than a factor times the sum over all positions."""
    if gradient is None or not bool((gradient != 0).any()):
        return 0.0
    reached = gradient != 0
    got, whole = gradient.double()[reached], whole[reached]
    factor = (got * whole).sum() / whole.square().sum()
    stray = (got - factor * whole).square().sum()
    return float(factor) if bool(stray <= STRAY * got.square().sum()) else None


def beside_output(model: nn.Module, inputs: Inputs, path: str) -> tuple[float, float] | None:
    """The same of a layer's bias, and of a vector of zeros that is added to what the layer returns."""
    args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
    with preserved(model):
        layer = model.get_submodule(path)
        bias = dict(model.named_parameters())[f"{path}.bias"]
        beside = torch.zeros_like(bias, requires_grad=True)
        handle = layer.register_forward_hook(lambda _layer, _args, made: made + beside)
        try:
            output = _output(list(tensors(model(*args, **kwargs))), bias.numel())
        finally:
            handle.remove()
        if output is None or not output.requires_grad:
            return None
        signs = torch.randint(2, output.shape[-1:], generator=torch.Generator().manual_seed(SEED)).to(output) * 2 - 1
        gradients = torch.autograd.grad((output * signs).sum(), (bias, beside), allow_unused=True)
    rows = output.numel() / output.shape[-1]
    first, second = (0.0 if one is None else float((one * signs).mean()) / rows for one in gradients)
    return first, second


def _output(outputs: list[Tensor], classes: int) -> Tensor | None:
    return next((x for x in outputs if x.is_floating_point() and x.shape[-1:] == (classes,)), None)
