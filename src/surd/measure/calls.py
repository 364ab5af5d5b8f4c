"""Calls: what the tap notes of a forward while it runs, before anything is computed from it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.graph import Place
from surd.measure.naming import Where
from surd.measure.sites import Role


@dataclass(frozen=True, kw_only=True, eq=False)
class Operand:
    """A tensor that a call reads."""

    place: Place | None
    rms: float
    shape: torch.Size
    value: Tensor | None
    """Its numbers, in runs that compare them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A tensor that may be what enters the model."""

    place: Place
    operand: Operand


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
    rms: float
    candidates: dict[Node, Candidate] = field(default_factory=dict)
    open: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """A product of an activation with a weight."""

    where: Where
    weight: Tensor | None
    """None where a quantised layer keeps it to itself."""
    read: Operand
    place: Place


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """A product of two activations."""

    where: Where
    place: Place
    shape: torch.Size
    left: Operand
    right: Operand
    d_k: int
    alpha: float
    """The factor that the call itself applies."""
    mixes: bool
    """One side is the output of a softmax: values are mixed, not scores made."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Softmax:
    """A softmax over anything."""

    where: Where
    place: Place | None
    values: Tensor
    """What it reads, masks included."""
    axis: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Fused:
    """An attention in one call: torch's own, or a kernel that was asked for its scale."""

    where: Where
    backend: str
    query: Operand
    key: Operand
    value: Operand
    scale: float | None
    """None where a kernel did not answer like a scaled product."""
    mask: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Size:
    """The rms of something that stands at a place of its own."""

    where: Where
    role: Role
    rms: float


def rms(x: Tensor) -> float:
    """Root mean square over all entries; NaN where there are no numbers."""
    return float("nan") if x.is_meta else float(x.detach().float().square().mean().sqrt())


def storage(x: Tensor) -> int | None:
    """Where the memory of a tensor begins, of a sharded one its part here; None for wrappers that have none."""
    local = getattr(x, "_local_tensor", x)
    try:
        return local.untyped_storage().data_ptr() or None
    except RuntimeError:
        return None
