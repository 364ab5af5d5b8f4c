"""Derivatives of a model's outputs with respect to parameters that are only added to them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surd.measure.calling.inputs import Inputs, arguments, replaced, tensors
from surd.measure.calling.restore import preserved

SEED = 11


def added_factors(model: nn.Module, inputs: Inputs, names: Sequence[str]) -> dict[str, float]:
    """By what each vector is multiplied on its way into the first output that has its length on the last axis.

    With a random sign for each class, Σ sign · d(Σ output · sign)/d(vector) is the factor times the number of entries.
    Zero where the vector does not reach the output.
    """
    args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
    with preserved(model):
        vectors = dict(model.named_parameters())
        wanted = [vectors[name] for name in names]
        output = _output(list(tensors(model(*args, **kwargs))), wanted[0].numel())
        if output is None or not output.requires_grad:
            return {}
        generator = torch.Generator().manual_seed(SEED)
        signs = torch.randint(2, output.shape[-1:], generator=generator).to(output) * 2 - 1
        gradients = torch.autograd.grad((output * signs).sum(), wanted, allow_unused=True)
    rows = output.numel() / output.shape[-1]
    return {
        name: 0.0 if gradient is None else float((gradient * signs).mean()) / rows
        for name, gradient in zip(names, gradients, strict=True)
    }


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
