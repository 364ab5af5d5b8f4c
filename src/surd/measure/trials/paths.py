"""Paths: token ids and the vectors of the same tokens are two ways into one model, and must lead to the same output."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surd.measure.calling.inputs import Inputs, arguments, replaced, signature_of, tensors
from surd.measure.calling.restore import preserved
from surd.measure.tensors import rms
from surd.measure.trace.naming import display_path

EMBEDDED = "inputs_embeds"
"""The name that models give to vectors of tokens; an encoder-decoder's belong to its encoder."""
SAME = 1e-4
"""Relative difference of two forwards that compute the same in another order."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Between the outputs of both paths."""

    difference: float
    """rms of the difference over rms of the output."""
    factor: float | None
    """By what the second path multiplies more; 1 over it mends the difference. None where no root explains it."""


@torch.no_grad()
def embedded_difference(module: nn.Module, inputs: Inputs, path: str, multiplier: float) -> Difference | None:
    """None where the model takes no vectors, or both paths agree. The model is left as it was.

    `path` is that of the module that looks rows up: what it returns for the ids are their vectors.
    """
    taken = _names(module)
    args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
    kwargs = dict(zip(taken, args, strict=False)) | kwargs
    name = next((key for key, x in kwargs.items() if _are_ids(key, x)), None)
    if name is None or EMBEDDED not in taken:
        return None
    holder = next((found for where, found in module.named_modules() if display_path(where) == path), None)
    if holder is None or EMBEDDED in _names(holder):
        return None
    ids = kwargs.pop(name)
    with preserved(module):
        try:
            expected = _first(module(**{name: ids}, **kwargs))
            rows = holder(ids)
            got = _first(module(**{EMBEDDED: rows}, **kwargs))
        except Exception:
            return None  # one of the paths is not open with these arguments: there is nothing to compare
        if expected is None or got is None or got.shape != expected.shape or not rms(expected):
            return None
        difference = rms(got.float() - expected.float()) / rms(expected)
        if difference < SAME:
            return None
        root = rows.shape[-1] ** 0.5
        for factor in (root, 1 / root, multiplier, 1 / multiplier, root**2):
            mended = _first(module(**{EMBEDDED: rows / factor}, **kwargs))
            if mended is not None and rms(mended.float() - expected.float()) < SAME * rms(expected):
                return Difference(difference=difference, factor=factor)
    return Difference(difference=difference, factor=None)


def _names(module: nn.Module) -> list[str]:
    """The names of what its forward takes."""
    return list(signature_of(module).parameters)


def _are_ids(name: str, x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64) and "mask" not in name


def _first(output: Any) -> Tensor | None:
    return next((x for x in tensors(output) if x.is_floating_point()), None)
