"""From token ids to the first residual stream: table · multiplier + position, then dropout."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from surd.nn.dropout import Dropout
from surd.nn.position import Position
from surd.part import Part


@dataclass(frozen=True, kw_only=True)
class RootWidth(Part, kind="root_width"):
    """√d_model: lifts a table, small because it is also the pre-softmax projection, to the size of the positions.

    Rows drawn with standard deviation 1/√d_model leave with rms 1, beside positions of rms √½.
    Source: Vaswani et al. 2017, section 3.4, which gives no reason.
    """

    def __call__(self, d_model: int) -> float:
        """The factor for a model of width `d_model`."""
        return d_model**0.5


Multiplier = RootWidth


class Embedding(nn.Module):
    """Holds one table `(vocabulary, d_model)`; the table may be shared with other layers (see `tying`)."""

    def __init__(self, vocabulary: int, d_model: int, multiplier: float, position: Position, rate: float):
        super().__init__()
        self.table = nn.Parameter(torch.empty(vocabulary, d_model))
        self.multiplier = multiplier
        self.position = position
        self.dropout = Dropout(rate)

    def forward(
        self, tokens: Int[Tensor, " rows"], positions: Int[Tensor, " rows"], length: int, dtype: torch.dtype
    ) -> Float[Tensor, "rows d_model"]:
        """`positions` counts from 0 within each token's sequence, below `length`; the result has `dtype`."""
        waves = self.position(length, self.table.shape[1], dtype, tokens.device)
        rows = F.embedding(tokens, self.table).to(dtype)
        return self.dropout(torch.add(waves[positions], rows, alpha=self.multiplier))
