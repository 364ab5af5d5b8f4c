"""Growth laws: the exponent with which a quantity grows."""

import math
from collections.abc import Mapping, Sequence

import torch


def slopes(values: Mapping[int, Sequence[float]]) -> list[float]:
    """The exponent of the size that fits best, by least squares on logarithms, for each seed."""
    x = torch.tensor([math.log(size) for size in values], dtype=torch.float64)
    y = torch.tensor(list(values.values()), dtype=torch.float64).log()  # (sizes, seeds)
    x = x - x.mean()
    return ((x[:, None] * y).sum(0) / x.square().sum()).tolist()


def growths(values: Mapping[int, Sequence[float]]) -> list[float]:
    """The value at the largest size over that at the smallest, for each seed."""
    return [wide / narrow for wide, narrow in zip(values[max(values)], values[min(values)], strict=True)]
