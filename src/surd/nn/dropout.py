"""Dropout whose mask is made of random bytes: eight masked numbers for each 64-bit draw."""

import torch
from torch import Tensor, nn

LEVELS = 256


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Zeroes each number with probability `rate`, rounded to the nearest 1/256, and divides the rest by what is kept.

    The division uses the rounded rate, so the expectation is exact. One byte decides one number, which makes the mask
    several times cheaper than a Bernoulli draw in floating point.
    """
    dropped = round(rate * LEVELS)
    return _ByteDropout.apply(x, dropped) if training and dropped else x


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dropped: int) -> Tensor:
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
        # From the smallest integer up: the default range is never negative, so every eighth byte would lack a bit.
        words.random_(-(2**63), None)
        keep = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
        ctx.save_for_backward(keep)
        ctx.factor = LEVELS / (LEVELS - dropped)
        return (x * keep).mul_(ctx.factor)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.factor), None


class Dropout(nn.Module):
    """Dropout as a layer: active in training mode only."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate, self.training)
