"""Linear layers whose weights stay in fp32 and are rounded to the dtype of whatever flows through them."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Linear):
    """x Wᵀ + b, in the dtype of x.

    Replaces autocast, whose per-operation casts cost more than they save on small models: here the weights are rounded
    once a step, gradients arrive in fp32, and the optimiser needs no second copy of the weights.
    """

    def __init__(self, inputs: int, outputs: tuple[int, ...], bias: bool = True):
        """`outputs` are the widths of the projections that lie one above the other in the weight, mostly one."""
        super().__init__(inputs, sum(outputs), bias)
        self.outputs = outputs

    def forward(self, input: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


class Projection(Linear):
    """The pre-softmax projection: one row for each token of the target vocabulary, perhaps the target's table."""

    def __init__(self, d_model: int, vocabulary: int, bias: bool):
        super().__init__(d_model, (vocabulary,), bias)
