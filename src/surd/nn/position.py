"""Where a token stands: the family of position signals."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from surd.part import Part


@lru_cache(maxsize=16)
def sinusoids(
    length: int, width: int, layout: str, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "length width"]:
    """sin and cos of position / 10000^(2i/width), i < width/2; computed in float64, then rounded once to `dtype`.

    Every pair has sin² + cos² = 1, so each row has rms √½ whatever its position and width.
    Source: Vaswani et al. 2017, section 3.5.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = position * frequency
    pairs = torch.stack(
        [angle.sin(), angle.cos()], dim=-1 if layout == "interleaved" else 1
    )  # (T, w/2, 2) | (T, 2, w/2)
    return pairs.reshape(length, width).to(dtype=dtype, device=device)


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Part, kind="sinusoidal"):
    """Fixed waves added to the embedding, one wavelength a pair of features."""

    layout: Literal["interleaved", "halves"] = "interleaved"
    """`interleaved`: sin, cos, sin, cos … as in the paper; `halves`: all sines, then all cosines, as in Marian."""

    def __call__(
        self, length: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "length width"]:
        """The first `length` rows of the table; the length is rounded up so that the table is made seldom."""
        made = max(64, 1 << (length - 1).bit_length())
        return sinusoids(made, width, self.layout, dtype, device)[:length]


Position = Sinusoidal
