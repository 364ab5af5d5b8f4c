"""Divided: rows and what is left of them behind a norm tell what they were divided by."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

SPREAD = 0.02
"""Of the square that rows are divided by, over their mean square: in a norm it is one number for all rows."""
SPREAD_HALF = 0.1
MEAN = 1e-4
"""Of the mean square of rows, that their means may hold where they are centred: rounding in half precision."""
FEWEST = 4
"""Entries of a row."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """What one norm divides by."""

    facts: dict[str, Any]
    """Fields of a `Norm`."""

    @property
    def epsilon(self) -> float:
        return self.facts["epsilon"]

    @classmethod
    def of(cls, square: Float[Tensor, " *rows"], epsilon: float, *, width: int, centred: bool) -> "Division":
        """By definition: x / √(square + epsilon)."""
        kept = square.flatten()[square.flatten() > 0]
        middle = float(kept.median()) if len(kept) else 0.0
        size = (middle / (middle + epsilon)) ** 0.5 if middle else 0.0
        return cls(
            facts={
                "width": width,
                "centred": centred,
                "epsilon": epsilon,
                "outside": False,
                "floor": False,
                "correction": 1.0,
                "variance": middle,
                "size": size,
            }
        )


@torch.no_grad()
def divided(
    rows: Tensor, statistic: Tensor, made: Tensor, epsilon: float, outside: bool, floor: bool
) -> Division | None:
    """From numbers alone; None where rows were divided by something else than their own size.

    `statistic` is what they were divided by or multiplied with: where it has one entry, a row has many.
    """
    shape = (1,) * (rows.dim() - statistic.dim()) + tuple(statistic.shape)
    if len(shape) != rows.dim():
        return None
    axes = [axis for axis, (one, all_) in enumerate(zip(shape, rows.shape, strict=True)) if one == 1 and all_ > 1]
    width = 1
    for axis in axes:
        width *= rows.shape[axis]
    if width < FEWEST or len(axes) == rows.dim() > 1:
        return None
    wide = rows.detach().double()
    square, after = wide.square().mean(axes), made.detach().double().square().mean(axes)
    mean = wide.mean(axes)
    kept = (square > 0) & (after > 0) & square.isfinite() & after.isfinite()
    if not bool(kept.any()):
        return None
    square, after, mean = square[kept], after[kept], mean[kept]
    by = square / after
    if floor:
        held = by.sqrt() > epsilon * 1.001 if outside else by > epsilon * 1.001
        corrected = (by / square)[held]
    else:
        corrected = (by.sqrt() - epsilon).square() / square if outside else (by - epsilon) / square
    if not len(corrected):
        return None
    half = rows.dtype.itemsize < 4 or made.dtype.itemsize < 4 or statistic.dtype.itemsize < 4
    low, middle, high = torch.quantile(corrected[:4096], torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()
    if middle <= 0 or high - low > (SPREAD_HALF if half else SPREAD) * middle:
        return None
    return Division(
        facts={
            "width": width,
            "centred": float(mean.square().mean() / square.mean()) < MEAN,
            "epsilon": epsilon,
            "outside": outside,
            "floor": floor,
            "correction": middle,
            "variance": float(square.median()),
            "size": float(after.median()) ** 0.5,
        }
    )
