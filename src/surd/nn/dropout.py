"""Dropout whose mask is made of random bytes: eight masked numbers for each 64-bit draw."""

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

LEVELS = 256


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Zeroes each number with probability `rate`, rounded to the nearest 1/256, and divides the rest by what is kept.

    The division uses the rounded rate, so the expectation is exact. One byte decides one number, which makes the mask
    several times cheaper than a Bernoulli draw in floating point.
    """
    dropped = round(rate * LEVELS)
    return _Dropout.apply(x, dropped) if training and dropped else x


def add_dropped(stream: Tensor, x: Tensor, rate: float, training: bool) -> Tensor:
    """`stream + dropout(x)` in one pass."""
    dropped = round(rate * LEVELS)
    return _AddDropped.apply(stream, x, dropped) if training and dropped else stream + x


def kept(x: Tensor, dropped: int) -> UInt8[Tensor, "..."]:
    """1 where a number of `x` stays and 0 where it goes, `dropped` of 256 going on average.

    Bytes and not booleans: a comparison that makes booleans, and their conversion to floating point, are both slower.
    """
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
    # From the smallest integer up: the default range is never negative, so every eighth byte would lack a bit.
    words.random_(-(2**63), None)
    return words.view(torch.uint8)[: x.numel()].view(x.shape).ge_(dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dropped: int) -> Tensor:
        mask = kept(x, dropped)
        ctx.save_for_backward(mask)
        ctx.factor = LEVELS / (LEVELS - dropped)
        return mask.to(x.dtype).mul_(x).mul_(ctx.factor)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (mask,) = ctx.saved_tensors
        return mask.to(gradient.dtype).mul_(gradient).mul_(ctx.factor), None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stream: Tensor, x: Tensor, dropped: int) -> Tensor:
        mask = kept(x, dropped)
        ctx.save_for_backward(mask)
        ctx.factor = LEVELS / (LEVELS - dropped)
        return torch.addcmul(stream, x, mask.to(x.dtype), value=ctx.factor)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (mask,) = ctx.saved_tensors
        return gradient, mask.to(gradient.dtype).mul_(gradient).mul_(ctx.factor), None


class Dropout(nn.Module):
    """Dropout as a layer: active in training mode only."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate, self.training)
