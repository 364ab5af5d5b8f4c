"""Samples: how large numbers are, what the seeds say together, and how a quantity grows with a size."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Statistics = Mapping[str, float]
"""What one seed says, by name."""
Sizes = Mapping[int, Sequence[float]] | Mapping[float, Sequence[float]]
"""For each size, one value a seed."""


def rms(x: Tensor) -> float:
    """The root of the mean square."""
    return x.double().square().mean().sqrt().item()


def mean(values: Iterable[float]) -> float:
    """The mean of one value a seed."""
    values = tuple(values)
    return math.fsum(values) / len(values)


def each(runs: Iterable[Statistics], name: str) -> list[float]:
    """One value a seed."""
    return [run[name] for run in runs]


def average(runs: Iterable[Statistics], name: str) -> float:
    """The mean over seeds."""
    return mean(each(runs, name))


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """One ratio a seed."""
    return [one / other for one, other in zip(over, under, strict=True)]


def differences(of: Sequence[float], less: Sequence[float]) -> list[float]:
    """One difference a seed."""
    return [one - other for one, other in zip(of, less, strict=True)]


def growths(values: Sizes) -> list[float]:
    """The value at the largest size over that at the smallest, for each seed."""
    ordered = [found for _, found in sorted(values.items())]
    return ratios(ordered[-1], ordered[0])


def slopes(values: Sizes) -> list[float]:
    """The exponent of the size that fits best, by least squares on logarithms, for each seed."""
    x = torch.tensor([math.log(size) for size in values], dtype=torch.float64)
    y = torch.tensor(list(values.values()), dtype=torch.float64).log()  # (sizes, seeds)
    x = x - x.mean()
    return ((x[:, None] * y).sum(0) / x.square().sum()).tolist()
