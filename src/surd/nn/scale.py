"""The factor between query·key and the softmax: the family of attention scales."""

from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.moments import Moments
from surd.part import Part


class ScaleRule(Part):
    """What the members share."""

    def __call__(self, d_k: int) -> float:
        """The factor for heads of width `d_k`."""
        raise NotImplementedError

    def law(self, d_k: int, keys: int) -> Moments:
        """Standard deviation of the scores of independent unit queries and keys; rms of the gradient at such a query.

        The latter for independent unit gradients at its `keys` scores.
        """
        factor = self(d_k) * self.at(keys)
        return Moments(factor * d_k**0.5, factor * keys**0.5)

    def at(self, keys: int) -> float:
        """What the number of visible keys adds to the factor."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class InverseRoot(ScaleRule, kind="inverse_root"):
    """1/√d_k: keeps the scores of independent unit queries and keys at variance 1 for every head width.

    Source: Vaswani et al. 2017, section 3.2.1, footnote: q·k of d_k independent unit components has variance d_k.
    """

    def __call__(self, d_k: int) -> float:
        """The factor for heads of width `d_k`."""
        return d_k**-0.5


@dataclass(frozen=True, kw_only=True)
class Inverse(ScaleRule, kind="inverse"):
    """factor/d_k: keeps the scores of *aligned* queries and keys, whose product grows with d_k, at one size.

    At the start, when they are independent, scores then shrink as 1/√d_k, which is meant. A factor of √d_k of some
    base model makes the two rules agree there. Source: Yang et al. 2022 (arXiv 2203.03466), maximal update.
    """

    factor: float = 1.0
    """Multiplies 1/d_k."""

    def __post_init__(self):
        _positive("factor", self.factor)

    def __call__(self, d_k: int) -> float:
        """The factor for heads of width `d_k`."""
        return self.factor / d_k


@dataclass(frozen=True, kw_only=True)
class Unscaled(ScaleRule, kind="none"):
    """1: scores of unit queries and keys have standard deviation √d_k.

    T5 has no factor and puts it into the initial queries instead (Raffel et al. 2020). Source of the comparison:
    Britz et al. 2017 (arXiv 1703.03906).
    """

    def __call__(self, d_k: int) -> float:
        """1, whatever the width."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Fixed(ScaleRule, kind="fixed"):
    """A given number, such as Gemma 2's query_pre_attn_scalar^-½ or Granite's attention_multiplier.

    Source: Gemma Team 2024 (arXiv 2408.00118).
    """

    value: float
    """The factor."""

    def __post_init__(self):
        _positive("value", self.value)

    def __call__(self, d_k: int) -> float:
        """The number, whatever the width."""
        return self.value


@dataclass(frozen=True, kw_only=True)
class LogLength(ScaleRule, kind="log_length"):
    """ln n / ln `length` · 1/√d_k for a row of n keys: a row's entropy, as a share of ln n, falls less as n grows.

    Source: Chiang & Cholak 2022 (arXiv 2202.12172), here normalised so that rows of `length` keys have 1/√d_k.
    """

    length: int = 64
    """Keys at which the factor is 1/√d_k."""

    def __post_init__(self):
        if self.length < 2:
            raise SurdError(f"length: expected at least 2 keys, found {self.length}")

    def __call__(self, d_k: int) -> float:
        """The factor for heads of width `d_k` and rows of `length` keys."""
        return d_k**-0.5

    def at(self, keys: int) -> float:
        """ln n / ln length."""
        return log(max(keys, 2)) / log(self.length)

    def build(self, heads: int) -> "LogLengthFactor":
        """The rest of the factor, for rows of other lengths."""
        return LogLengthFactor(self.length)


@dataclass(frozen=True, kw_only=True)
class Learned(ScaleRule, kind="learned"):
    """1/√d_k times a learnt number a head, which starts at 1.

    Source: the logit scale of cosine attention is learnt a head in Liu et al. 2022 (arXiv 2111.09883).
    """

    def __call__(self, d_k: int) -> float:
        """The factor at the start."""
        return d_k**-0.5

    def build(self, heads: int) -> "LearnedFactor":
        """The learnt numbers."""
        return LearnedFactor(heads)


class LogLengthFactor(nn.Module):
    """Multiplies each query by ln n / ln `length`, n being the number of keys that it sees."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length

    def forward(
        self, query: Float[Tensor, "batch heads queries d_k"], keys: Float[Tensor, "#batch 1 #queries 1"]
    ) -> Float[Tensor, "batch heads queries d_k"]:
        # A row of one key has nothing to choose from: any factor does, and 0 would only hide it from the gradient.
        return query * (keys.clamp(min=2).log() / log(self.length)).to(query.dtype)


class LearnedFactor(nn.Module):
    """Multiplies each head's queries by its own learnt number."""

    def __init__(self, heads: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(heads))

    def forward(
        self, query: Float[Tensor, "batch heads queries d_k"], keys: Float[Tensor, "#batch 1 #queries 1"]
    ) -> Float[Tensor, "batch heads queries d_k"]:
        return query * self.gain.to(query.dtype)[:, None, None]


Scale = InverseRoot | Inverse | Unscaled | Fixed | LogLength | Learned


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise SurdError(f"{name}: expected a number above 0, found {value}")
