"""Calls: what the tap notes of a forward while it runs, before anything is computed from it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.sites import Site
from surd.measure.trace.graph import Place
from surd.measure.trace.heads import Rows
from surd.measure.trace.naming import Where


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """A tensor as it was when a call met it."""

    turn: int
    """How many were met before."""
    place: Place | None
    rms: float
    """Over the entries that count."""
    share: float = 1.0
    """How many of its entries count: scores of hidden keys do not, and get no gradient."""
    shape: torch.Size
    value: Tensor | None
    """Its numbers, in runs that compare them."""


@dataclass(kw_only=True, eq=False)
class LookUp:
    """Rows taken from a table, and what may enter the model of them, until the first product reads them."""

    where: Where
    table: Tensor
    ids: Tensor
    token: bool
    """Tokens, and not positions or segments."""
    turned: bool
    """The ids stand as (positions, rows)."""
    place: Place
    rows: Seen
    candidates: dict[Node, Seen] = field(default_factory=dict)
    open: bool = True
    reads: Tensor | None = None
    """What the first product reads of them, behind whatever norm stands before it."""
    attended: bool = False
    """The first product is one of attention."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """A product of an activation with a weight."""

    where: Where
    weight: Tensor | None
    """None where a quantised layer keeps it to itself."""
    read: Seen
    place: Place
    fan_in: int
    """Over how many numbers it sums."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """A product of two activations."""

    where: Where
    place: Place
    shape: torch.Size
    stride: tuple[int, ...] | None
    """How that shape lies in what was computed, which is at the place; None where that has gaps."""
    left: Seen
    right: Seen
    d_k: int
    alpha: float
    """The factor that the call itself applies."""
    mixes: bool
    """One side is the output of a softmax: values are mixed, not scores made."""

    def returned(self, x: Tensor) -> Tensor:
        """What lies at the place, in the shape that the call returned: einsum's is a view of what it computed."""
        return x if self.stride is None else x.contiguous().as_strided(self.shape, self.stride)


@dataclass(frozen=True, kw_only=True, eq=False)
class Softmax:
    """A softmax over anything."""

    where: Where
    scores: Seen
    """What it reads; those far below all others are of hidden keys."""
    values: Tensor
    """Its numbers."""
    axis: int
    mixed: list[tuple[Seen, Seen]] = field(default_factory=list)
    """What it weighs, and what comes of it."""


@dataclass(kw_only=True, eq=False)
class Fused:
    """An attention in one call: torch's own, or a kernel that was asked for its scale."""

    where: Where
    backend: str
    query: Seen
    key: Seen
    value: Seen
    scale: float | None
    """None where a kernel did not answer like a scaled product."""
    bias: Tensor | None
    """What is added to the scores, -inf at hidden keys; of a kernel, up to a constant in each row."""
    scores: Seen | None
    """Computed from query and key; None where that would take too much memory, or the scale is unknown."""
    rows: Rows | None = None
    """What its softmax does in each row; None where the scores are not known."""
    mix: Seen | None = None
    """What it returns, once it has."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """An addition of something and a function of it."""

    where: Where
    carried: Node
    """What goes past the branch."""
    value: Tensor
    """Its numbers, unless the forward writes over them."""
    branch: Node
    factor: float = 1.0
    """By which number, fixed in code, the stream is multiplied before it is added; 1 where the branch is so too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Size:
    """Something whose rms is read, and the name of its site."""

    site: Site
    seen: Seen
