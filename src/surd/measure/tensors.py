"""Tensors: the size of one, the numbers it holds, and whose memory it is."""

import torch
from torch import Tensor


def rms(x: Tensor) -> float:
    """Root mean square over all entries."""
    x = dense(x.detach())
    return float((x.abs() if x.is_complex() else x).float().square().mean().sqrt())


def dense(x: Tensor) -> Tensor:
    """With all its entries, also those that a sparse tensor leaves out."""
    return x if x.layout is torch.strided else x.to_dense()


def deviation(scores: Tensor, shown: Tensor, axis: int) -> tuple[float, float]:
    """The rms of what is left of scores without the mean of their row, and the share that is shown and so counts."""
    shown = shown & scores.isfinite()
    kept = scores.float().where(shown, 0.0)
    means = kept.sum(axis, keepdim=True) / shown.sum(axis, keepdim=True).clamp(min=1)
    share = float(shown.float().mean())
    return (rms((kept - means).where(shown, 0.0)) / share**0.5 if share else float("nan")), share


def storage(x: Tensor) -> int | None:
    """Where the memory of a tensor begins, of a sharded one its part here; None for wrappers that have none."""
    local = getattr(x, "_local_tensor", x)
    try:
        return local.untyped_storage().data_ptr() or None
    except RuntimeError:
        return None
