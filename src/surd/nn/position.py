"""Where a token stands: the family of position signals."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.signal import Signal, Tape
from surd.part import Part

Pairing = Literal["interleaved", "halves"]
"""Which features make a pair: 0 and 1, 2 and 3, …; or the first of each half, the second of each half, …"""


@lru_cache(maxsize=16)
def sinusoids(
    length: int, width: int, layout: str, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "length width"]:
    """sin and cos of position / 10000^(2i/width), i < width/2; computed in float64, then rounded once to `dtype`.

    Every pair has sin² + cos² = 1, so each row has rms √½ whatever its position and width.
    Source: Vaswani et al. 2017, section 3.5.
    """
    angle = angles(length, width, 10_000.0)
    pairs = torch.stack(
        [angle.sin(), angle.cos()], dim=-1 if layout == "interleaved" else 1
    )  # (T, w/2, 2) | (T, 2, w/2)
    return pairs.reshape(length, width).to(dtype=dtype, device=device)


def angles(length: int, width: int, base: float) -> Float[Tensor, "length pairs"]:
    """position / base^(2i/width) for each position and pair i, in float64."""
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency


@lru_cache(maxsize=16)
def turns(
    length: int, width: int, base: float, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, "length pairs"], Float[Tensor, "length pairs"]]:
    """Cosine and sine of the angle by which `rotate` turns each pair at each position."""
    angle = angles(length, width, base)
    return angle.cos().to(dtype=dtype, device=device), angle.sin().to(dtype=dtype, device=device)


def rotate(
    x: Float[Tensor, "*rest length width"],
    cosine: Float[Tensor, "length pairs"],
    sine: Float[Tensor, "length pairs"],
    layout: str,
) -> Float[Tensor, "*rest length width"]:
    """Turns each pair of features by its angle; lengths stay, and q·k comes to depend on the distance alone.

    Source: Su et al. 2021 (arXiv 2104.09864).
    """
    across = layout == "interleaved"
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if across else x.unflatten(-1, (2, -1)).unbind(-2)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.stack(turned, dim=-1 if across else -2).flatten(-2)


def likeness(length: int, width: int, base: float) -> Float[Tensor, "length length"]:
    """Mean over pairs of features of cos(angle between two positions), in float64.

    Twice the product of two rows of `sinusoids`, and the part of a common vector that `rotate` leaves common.
    """
    angle = angles(length, width, base)
    return (angle.cos() @ angle.cos().T + angle.sin() @ angle.sin().T) / angle.shape[1]


def _rounded(length: int) -> int:
    """A power of two, so that tables are made seldom."""
    return max(64, 1 << (length - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Part, kind="sinusoidal"):
    """Fixed waves added to the embedding, one wavelength a pair of features. Source: Vaswani et al. 2017, 3.5."""

    rms: ClassVar[float] = 0.5**0.5
    """Of what is added."""
    layout: Pairing = "interleaved"
    """`interleaved`: sin, cos, sin, cos … as in the paper; `halves`: all sines, then all cosines, as in Marian."""

    def __call__(
        self, length: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "length width"]:
        """The first `length` rows of the table."""
        return sinusoids(_rounded(length), width, self.layout, dtype, device)[:length]

    def expect(self, length: int, width: int) -> Signal:
        """The first `length` rows as a signal."""
        rows = sinusoids(length, width, self.layout, torch.float64, torch.device("cpu"))
        return Signal(rows @ rows.T / width, rows.mean(1)[:, None] * rows.mean(1))


@dataclass(frozen=True, kw_only=True)
class LearnedPosition(Part, kind="learned"):
    """A learnt row for each position, added to the embedding; it starts at N(0, std).

    Source: Gehring et al. 2017 (arXiv 1705.03122); compared in Vaswani et al. 2017, table 3 (E).
    """

    length: int = 258
    """Positions that there are; no sequence can be longer."""
    std: float = 0.5**0.5
    """Standard deviation at the start; √½ is the rms of the sinusoidal signal."""

    @property
    def rms(self) -> float:
        """Of what is added at the start."""
        return self.std

    def __post_init__(self):
        if self.length < 1:
            raise SurdError(f"length: expected at least 1 position, found {self.length}")
        if not 0 < self.std < float("inf"):
            raise SurdError(f"std: expected a number above 0, found {self.std}")

    def build(self, width: int) -> "LearnedTable":
        """The table of a model of that width."""
        return LearnedTable(self.length, width, self.std)


class LearnedTable(nn.Module):
    """One row a position."""

    def __init__(self, length: int, width: int, std: float):
        super().__init__()
        self.std = std
        self.table = nn.Parameter(torch.empty(length, width))

    def forward(
        self, length: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "length width"]:
        """The first `length` rows."""
        if length > len(self.table):
            raise SurdError(
                f"a sequence of {length:,} tokens, but the model has learnt {len(self.table):,} positions "
                "(model.position.length)"
            )
        return self.table[:length].to(dtype)

    def expect(self, length: int, width: int) -> Signal:
        """The first `length` rows as a signal: independent of each other."""
        return Signal(self.std**2 * torch.eye(length, dtype=torch.float64), fresh=1 / width)


@dataclass(frozen=True, kw_only=True)
class Rotary(Part, kind="rotary"):
    """Turns queries and keys of self-attention by angles that grow with the position; nothing is added.

    Source: Su et al. 2021 (arXiv 2104.09864).
    """

    rms: ClassVar[float] = 0.0
    """Nothing is added."""
    base: float = 10_000.0
    """The slowest pair turns once in about 2π · base positions."""
    layout: Pairing = "halves"
    """`halves` as in GPT-NeoX and Llama, `interleaved` as in the paper and GPT-J."""

    def __post_init__(self):
        if not 1 < self.base < float("inf"):
            raise SurdError(f"base: expected a number above 1, found {self.base}")

    def turn(
        self, x: Float[Tensor, "batch heads length d_k"], start: int = 0
    ) -> Float[Tensor, "batch heads length d_k"]:
        """Queries or keys at positions start, start + 1, …"""
        end = start + x.shape[-2]
        cosine, sine = turns(_rounded(end), x.shape[-1], self.base, x.dtype, x.device)
        return rotate(x, cosine[start:end], sine[start:end], self.layout)

    def expect(self, x: Signal, d_k: int, tape: Tape) -> Signal:
        """What `turn` does to a signal: what positions share is turned apart."""
        return tape.scaled(x, likeness(len(x.products), d_k, self.base))


@dataclass(frozen=True, kw_only=True)
class NoPosition(Part, kind="none"):
    """No signal: order is seen only through the causal mask. Source: Haviv et al. 2022 (arXiv 2203.16634)."""

    rms: ClassVar[float] = 0.0
    """Nothing is added."""


Position = Sinusoidal | LearnedPosition | Rotary | NoPosition
