"""From token ids to the first residual stream: table · multiplier + position, then dropout."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.moments import Moments
from surd.measure.signal import Signal, Tape
from surd.measure.sites import Role
from surd.nn.dropout import Dropout
from surd.nn.position import LearnedPosition, NoPosition, Position, Rotary
from surd.nn.special import SPECIALS
from surd.part import Part


class MultiplierRule(Part):
    """What the members share."""

    def __call__(self, d_model: int) -> float:
        """The factor for a model of width `d_model`."""
        raise NotImplementedError

    def law(self, d_model: int) -> Moments:
        """Rows and their gradients are multiplied alike."""
        return Moments(self(d_model), self(d_model))


@dataclass(frozen=True, kw_only=True)
class RootWidth(MultiplierRule, kind="root_width"):
    """√d_model: lifts a table, small because it is also the pre-softmax projection, to the size of the positions.

    Rows drawn with standard deviation 1/√d_model leave with rms 1, beside positions of rms √½.
    Source: Vaswani et al. 2017, section 3.4, which gives no reason.
    """

    def __call__(self, d_model: int) -> float:
        """The factor for a model of width `d_model`."""
        return d_model**0.5


@dataclass(frozen=True, kw_only=True)
class NoMultiplier(MultiplierRule, kind="none"):
    """1: rows enter at the size at which they are stored, which must then be that of the positions.

    Source: the default of torch's nn.Embedding, N(0, 1), and of BERT, whose embeddings are normalised instead.
    """

    def __call__(self, d_model: int) -> float:
        """1, whatever the width."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class FixedMultiplier(MultiplierRule, kind="fixed"):
    """A given number, such as Granite's embedding_multiplier. Source: Yang et al. 2022 (arXiv 2203.03466)."""

    value: float
    """The factor."""

    def __post_init__(self):
        if not 0 < self.value < float("inf"):
            raise SurdError(f"value: expected a number above 0, found {self.value}")

    def __call__(self, d_model: int) -> float:
        """The number, whatever the width."""
        return self.value


Multiplier = RootWidth | NoMultiplier | FixedMultiplier


class _ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient * ctx.factor, None


class Embedding(nn.Module):
    """Holds one table `(vocabulary, d_model)`; the table may be shared with other layers (see `tying`)."""

    def __init__(
        self,
        vocabulary: int,
        d_model: int,
        multiplier: float,
        position: Position,
        rate: float,
        input_gradient: float = 1.0,
    ):
        super().__init__()
        self.table = nn.Parameter(torch.empty(vocabulary, d_model))
        self.multiplier, self.input_gradient = multiplier, input_gradient
        self.position = position.build(d_model) if isinstance(position, LearnedPosition) else position
        self.dropout = Dropout(rate)

    def forward(
        self, tokens: Int[Tensor, " rows"], positions: Int[Tensor, " rows"], length: int, dtype: torch.dtype
    ) -> Float[Tensor, "rows d_model"]:
        """`positions` counts from 0 within each token's sequence, below `length`; the result has `dtype`."""
        rows = F.embedding(tokens, self.table)
        if self.input_gradient != 1.0:
            rows = _ScaledGradient.apply(rows, self.input_gradient)
        rows = rows.to(dtype)
        if isinstance(self.position, Rotary | NoPosition):
            return self.dropout(rows * self.multiplier)
        signal = self.position(length, self.table.shape[1], dtype, tokens.device)
        return self.dropout(torch.add(F.embedding(positions, signal), rows, alpha=self.multiplier))

    def expect(self, length: int, std: float, tape: Tape) -> Signal:
        """What `forward` makes of random tokens, in a table of that standard deviation."""
        again = 1 / max(1, len(self.table) - len(SPECIALS))  # the chance that two positions read the same row
        rows = std**2 * (again + (1 - again) * torch.eye(length, dtype=torch.float64))
        chance = again * (1 - again) + 1 / self.table.shape[1]
        token = tape.note(self, Role.TOKEN, Signal(rows, own=rows.diagonal(), chance=chance, exact=True))
        x = tape.scaled(token, self.multiplier**2)
        if not isinstance(self.position, Rotary | NoPosition):
            x = tape.added(x, self.position.expect(length, self.table.shape[1]), exact=True)
        return tape.note(self, Role.EMBED, x)
