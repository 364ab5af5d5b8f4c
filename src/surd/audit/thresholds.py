"""Thresholds: the healthy ranges of all rules, in one file of data, each with its source."""

import tomllib
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path

FILE = Path(__file__).parent / "thresholds.toml"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A range of healthy values, and why it is that one."""

    low: float
    high: float
    source: str

    def holds(self, value: float) -> bool:
        """Whether a value is healthy; one that is not finite never is."""
        return self.low <= value <= self.high


def threshold(rule: str, quantity: str) -> Threshold:
    """Of a rule's quantity; a missing bound is infinite."""
    entry = _table()[rule][quantity]
    return Threshold(low=entry.get("low", -inf), high=entry.get("high", inf), source=entry["source"])


@cache
def _table() -> dict[str, dict[str, dict]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
