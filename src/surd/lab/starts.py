"""Starts: how public models and tutorials draw a table of embeddings, and by what they multiply its rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surd.nn.embedding import Multiplier, NoMultiplier, RootWidth
from surd.nn.init import Init, KerasInit, Matrix, SmallInit, TorchInit, TransformerInit

KERAS, KERAS_ROOT, PAPER, SMALL_ROOT, TORCH, TORCH_ROOT = (
    "U(±0.05)",
    "U(±0.05) · √d",
    "N(0, 1/√d) · √d",
    "N(0, 0.02) · √d",
    "N(0, 1)",
    "N(0, 1) · √d",
)


@dataclass(frozen=True, kw_only=True)
class Start:
    """A choice of the two parts that decide the size of an embedding."""

    init: Init
    multiplier: Multiplier

    def size(self, d_model: float) -> float:
        """The rms of a row as it enters the model."""
        matrix = Matrix(role="table", inputs=int(d_model), outputs=0)
        return self.init.spread(matrix).std * self.multiplier(int(d_model))

    def rows(self, count: int, d_model: int, draw: torch.Generator) -> Tensor:
        """Rows as they enter the model."""
        rows = torch.empty(count, d_model)
        self.init.spread(Matrix(role="table", inputs=d_model, outputs=count)).draw(rows, draw)
        return rows * self.multiplier(d_model)


STARTS = {
    KERAS: Start(init=KerasInit(), multiplier=NoMultiplier()),
    KERAS_ROOT: Start(init=KerasInit(), multiplier=RootWidth()),
    PAPER: Start(init=TransformerInit(), multiplier=RootWidth()),
    SMALL_ROOT: Start(init=SmallInit(), multiplier=RootWidth()),
    TORCH: Start(init=TorchInit(), multiplier=NoMultiplier()),
    TORCH_ROOT: Start(init=TorchInit(), multiplier=RootWidth()),
}
"""U(±0.05) is the default of keras.layers.Embedding, N(0, 1) that of torch.nn.Embedding."""
