"""Linear layers whose weights stay in fp32 and are rounded to the dtype of whatever flows through them."""

from math import log

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.signal import Signal, Tape
from surd.measure.sites import Role
from surd.measure.softmax.gaussian import nearly

FEWEST = 12
"""Rows with which a product is computed at least where nothing is learnt: with fewer, libraries take other kernels that
round otherwise, and what a sentence becomes would depend on how many stand beside it."""


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
        weight, bias = self.weight.to(input.dtype), None if self.bias is None else self.bias.to(input.dtype)
        rows = len(input)
        if input.dim() == 2 and rows < FEWEST and not torch.is_grad_enabled():
            return F.linear(F.pad(input, (0, 0, 0, FEWEST - rows)), weight, bias)[:rows]
        return F.linear(input, weight, bias)


class Projection(Linear):
    """The pre-softmax projection: one row for each token of the target vocabulary, perhaps the target's table."""

    def __init__(self, d_model: int, vocabulary: int, bias: bool):
        super().__init__(d_model, (vocabulary,), bias)

    def expect(self, hidden: Signal, tied: bool, tape: Tape) -> Signal:
        """The logits of a signal, and the gradient with which a cross-entropy with random labels begins.

        `tied`: the row of the table that a position has read is a row here too, and meets itself.
        """
        (draw,) = tape.draws[self]
        width, vocabulary, back_gain = self.in_features, self.out_features, self.out_features * draw.std**2
        others = width * draw.std**2 * hidden.squares + draw.bias**2
        met = width * draw.std * hidden.own.sqrt() if tied and hidden.own is not None else torch.zeros_like(others)
        squares, _ = nearly(others.mean().item() ** 0.5, vocabulary)
        # The chance of the own token among the others, whose exponentials have the mean exp(others / 2).
        chance = 1 / (1 + (vocabulary - 1) * (others / 2 - met).exp()) * (met > 0)
        alike = hidden.products / (hidden.squares[:, None] * hidden.squares).sqrt()
        rest = (alike.clamp(0, 1) * log(vocabulary * squares)).exp() / vocabulary
        one = torch.eye(len(others), dtype=others.dtype)
        left = (1 - chance[:, None]) * (1 - chance)
        same = left * rest + (1 - left) / vocabulary * (1 - one) + chance.square().diag()
        logits = Signal((others + met.square() / vocabulary).diag(), exact=False)
        logits.gradients += (same + one - (1 + one) / vocabulary) / vocabulary

        def back() -> None:
            hidden.gradients += back_gain * logits.gradients
            if tied and hidden.own is not None:  # towards the own row, as much as its token is expected
                hidden.along = chance * draw.std * hidden.own.sqrt()

        return tape.note(self, Role.LOGITS, tape.then(logits, back))
