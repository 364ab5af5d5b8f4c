"""The position-wise network of each layer: the family of feed-forwards."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.nn.linear import Linear
from surd.part import Part


@dataclass(frozen=True, kw_only=True)
class ReLU(Part, kind="relu"):
    """max(0, x W₁ + b₁) W₂ + b₂. Source: Vaswani et al. 2017, section 3.3."""

    def build(self, d_model: int, d_ff: int) -> "ReLULayer":
        return ReLULayer(d_model, d_ff)


class ReLULayer(nn.Module):
    """Holds the two matrices of a ReLU feed-forward."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)

    def forward(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        return self.outer(torch.relu_(self.inner(x)))


FeedForward = ReLU
