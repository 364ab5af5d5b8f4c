"""What no check can judge is refused before any rule looks: weights that are no numbers, or that are not there."""

import re

import torch
from torch import Tensor, nn

from surd.audit.weights import Weights
from surd.errors import SurdError

MOST_EXPANDED = 2**24
"""Entries of a tensor that is not all in memory."""


def refuse_numberless(weights: Weights) -> None:
    """Refuses lazy layers, the meta device, and weights with NaN or an infinity, by the first of them."""
    module = weights.module
    if module is not None:
        _refuse_absent(module)
    for name in sorted(weights.names(), key=_place) if module is None else weights.names():
        if not weights.dtype(name).is_floating_point or weights.dtype(name).itemsize < 2:
            continue
        if wrong := sum(map(_not_finite, weights.blocks(name))):
            raise SurdError(
                f"{name}: {wrong} of its {weights.shape(name).numel():,} numbers are NaN or infinite, and all "
                "that they touch is; restore the weights from before, or draw them again"
            )


def _refuse_absent(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SurdError(f"{name} belongs to a lazy layer without weights; expected a model that has run once")
        if parameter.is_meta:
            raise SurdError(f"{name} is on the meta device, where there are no numbers to measure; expected a real one")
        if parameter.layout is torch.strided and 0 in parameter.stride() and parameter.numel() > MOST_EXPANDED:
            raise SurdError(
                f"{name} is expanded from fewer numbers to {parameter.numel():,}; expected a matrix of its own"
            )


def _place(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Where a tensor of a file stands in the model: tables, then layers, the third before the tenth, then the rest."""
    table = re.search(r"(?<!un)(emb(?!ed_out)|wte|wpe|shared|table)", name) is not None
    inner = re.search(r"(^|\.)\d+\.", name) is not None
    place = 0 if table and not inner else 1 if inner else 2
    return place, [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _not_finite(x: Tensor) -> int:
    """How many numbers are none, without a copy of the whole."""
    # A sum is finite where all are, unless it overflows: then they are counted one by one.
    return 0 if bool(x.detach().sum(dtype=torch.float64).isfinite()) else int((~x.isfinite()).sum())
