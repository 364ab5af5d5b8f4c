"""Starts: how public models and tutorials draw a table of embeddings, and by what they multiply its rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Start:
    """A way to start a table of embeddings, and the factor on its rows."""

    std: Callable[[int], float]
    """Standard deviation of the table, of the model's width."""
    factor: Callable[[int], float]
    """Factor on its rows, of the model's width."""
    uniform: bool = False
    """Uniform between ±√3 std; else normal."""

    def size(self, d_model: int) -> float:
        """The rms of a row as it enters the model."""
        return self.std(d_model) * self.factor(d_model)

    def table(self, count: int, d_model: int, draw: torch.Generator) -> Tensor:
        """The table itself."""
        unit = torch.randn(count, d_model, generator=draw)
        if self.uniform:
            unit = (torch.rand(count, d_model, generator=draw) * 2 - 1) * math.sqrt(3)
        return self.std(d_model) * unit

    def rows(self, count: int, d_model: int, draw: torch.Generator) -> Tensor:
        """Rows as they enter the model."""
        return self.factor(d_model) * self.table(count, d_model, draw)


KERAS = 0.05 / math.sqrt(3)
TABLES = {
    "U(±0.05)": Start(std=lambda d: KERAS, factor=lambda d: 1.0, uniform=True),
    "U(±0.05) · √d": Start(std=lambda d: KERAS, factor=math.sqrt, uniform=True),
    "N(0, 1/√d) · √d": Start(std=lambda d: d**-0.5, factor=math.sqrt),
    "N(0, 0.02) · √d": Start(std=lambda d: 0.02, factor=math.sqrt),
    "N(0, 1)": Start(std=lambda d: 1.0, factor=lambda d: 1.0),
    "N(0, 1) · √d": Start(std=lambda d: 1.0, factor=math.sqrt),
}
"""U(±0.05) is the default of keras.layers.Embedding, N(0, 1) that of torch.nn.Embedding."""
