"""Thresholds: the healthy ranges of all rules, in one file of data, each with its source."""

import tomllib
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "thresholds.toml"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A range of healthy values, and why it is that one."""

    low: float
    high: float
    source: str

    def holds(self, value: float) -> bool:
        """Whether a value is healthy; one that is no number never is."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if self.low == -inf:
            return f"at most {self.high:g} ({self.source})"
        bounds = f"at least {self.low:g}" if self.high == inf else f"{self.low:g} to {self.high:g}"
        return f"{bounds} ({self.source})"


def threshold(rule: str, quantity: str) -> Threshold:
    """Of a rule's quantity; a missing bound is infinite."""
    return ranges(rule)[quantity]


def ranges(rule: str) -> dict[str, Threshold]:
    """All of a rule, by the name of the quantity."""
    return {
        quantity: Threshold(low=entry.get("low", -inf), high=entry.get("high", inf), source=entry["source"])
        for quantity, entry in _table().get(rule, {}).items()
    }


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
