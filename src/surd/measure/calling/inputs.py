"""Inputs: what a module is called with, and the tensors in it."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

GIVE = (
    "Give what it is called with: a tensor, a tuple or a dict of its arguments, as the second argument in Python or "
    "the second thing that a factory returns; or a file of them, as --batch FILE.safetensors"
)
"""The mend, in all the ways there are, where a model cannot be called with what was made for it."""

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one argument, positional ones, or named ones."""


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of the call."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, list | tuple) else ((inputs,), {})


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))


def are_ids(x: Tensor) -> bool:
    """Whether a tensor holds ids: whole numbers, which Keras hands on as floats."""
    if not x.is_floating_point():
        return x.dtype != torch.bool
    return x.dim() == 2 and x.numel() > 0 and bool((x >= 0).all()) and torch.equal(x, x.round()) and float(x.max()) > 1


def replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same containers with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        parts = {key: replaced(part, change) for key, part in value.items()}
        if type(value) is dict:
            return parts
        if dataclasses.is_dataclass(value):  # what models of Hugging Face's library return is both
            return type(value)(**parts)
        same = copy(value)
        same.update(parts)
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(replaced(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: replaced(getattr(value, f.name), change) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **parts)
    return value


def signature_of(model: nn.Module) -> inspect.Signature:
    """What a forward takes; a wrapper, such as an adapter, that hands on whatever it gets takes what its module takes.

    One that was compiled does not tell, and may take anything.
    """
    try:
        found = inspect.signature(model.forward)
    except (TypeError, ValueError):
        found = inspect.Signature([inspect.Parameter(kind.name.lower(), kind) for kind in VARIADIC])
    inner = list(model.children())
    hands_on = all(parameter.kind in VARIADIC for parameter in found.parameters.values()) and found.parameters
    return signature_of(inner[0]) if hands_on and len(inner) == 1 else found


def spelt(signature: inspect.Signature) -> str:
    """Names and defaults alone: what types a library writes beside them may fill a page."""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
