"""Use: the part that a weight plays in a forward."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class Part(StrEnum):
    """What a weight is for; a closed list."""

    TABLE = "table"
    """Rows are looked up by tokens."""
    POSITIONS = "positions"
    """Rows of a table, or numbers, that are added and do not depend on tokens: also segments."""
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUT = "out"
    """Reads what attention has mixed."""
    INNER = "inner"
    """First layer of a feed-forward: its outputs reach another one through a nonlinearity."""
    OUTER = "outer"
    HEAD = "head"
    """Makes the logits."""
    GAIN = "gain"
    """Multiplies what a norm has normalised."""
    BIAS = "bias"
    """Is added behind a norm."""
    LAYER = "layer"
    """Any other projection: of patches, a pooler, a bottleneck."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of a weight; a tied matrix has two, a packed one three."""

    name: str
    """Of the parameter."""
    part: Part
    path: str
    """Of the module that was at work."""
    fan_in: int
    """Over how many numbers the projection sums; the width of a table or norm."""
    fan_out: int
    """How many it makes of them; the rows of a table."""
    attention: int | None = None
    """Which attention of the trace it belongs to, counted from 0, for query, key, value and out."""
    axis: int | None = None
    """Where several parts lie in one matrix: along which of its axes, and which places are this part's."""
    places: tuple[int, ...] = ()

    def of(self, weight: Tensor) -> Tensor:
        """This part of the weight."""
        if self.axis is None:
            return weight
        return weight.detach().index_select(self.axis, torch.tensor(self.places, device=weight.device))
