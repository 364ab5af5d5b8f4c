"""Heads: what the softmax of each head does, as the pages show it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Heads:
    """One attention."""

    site: str
    values: Mapping[str, tuple[float, ...]]
    """One number a head, by the name of the statistic; NaN where none could be read."""
