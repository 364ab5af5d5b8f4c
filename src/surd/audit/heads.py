"""Heads: what the softmax of each head does, as the pages show it."""

from collections.abc import Mapping
from dataclasses import dataclass

from surd.measure.sites import Attention


@dataclass(frozen=True, kw_only=True)
class Heads:
    """One attention."""

    site: str
    values: Mapping[str, tuple[float, ...]]
    """One number a head, by the name of the statistic; NaN where none could be read."""


def head_values(site: Attention) -> dict[str, tuple[float, ...]]:
    """What was read of each head, under the names that the page shows."""
    assert site.softmax is not None, "only of an attention whose scores were seen"
    return {
        "entropy over ln n": site.softmax.entropy,
        "dead rows": site.softmax.dead,
        "logit std": site.softmax.std,
        "largest logit": site.softmax.largest,
    }
