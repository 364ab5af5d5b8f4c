"""Checkpoint averaging: the plain mean of the weights of several moments of one training."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from surd.files import load_tensors


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of each tensor over weight files of one model, summed in float64. Vaswani et al. 2017, section 6.1.

    One file is in memory at a time, beside the sum.
    """
    sums: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in load_tensors(path).items():
            sums[name] = sums[name].add_(tensor) if name in sums else tensor.to(torch.float64)
    return {name: (total / len(paths)).to(torch.float32) for name, total in sums.items()}
