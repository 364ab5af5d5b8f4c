"""Ties: tables that are both embedding and pre-softmax projection, as models start with them."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tie:
    """One table on both sides."""

    std: float
    """Its standard deviation."""
    into: float
    """Factor on a row where it enters the model."""
    out: float
    """Factor on the logits."""


PAPER, T5, PLAIN = "N(0, 1/√d), rows · √d", "N(0, 1), logits / √d", "N(0, 1), no factor"


def ties(d_model: int) -> dict[str, Tie]:
    """By name, for a width. Sources: Vaswani et al. 2017 with tensor2tensor's start; Raffel et al. 2020 (T5)."""
    root = math.sqrt(d_model)
    return {
        PAPER: Tie(std=1 / root, into=root, out=1.0),
        T5: Tie(std=1.0, into=1.0, out=1 / root),
        "N(0, 0.02), no factor": Tie(std=0.02, into=1.0, out=1.0),
        "N(0, 0.02), rows · √d": Tie(std=0.02, into=root, out=1.0),
        "U(±0.05), rows · √d": Tie(std=0.05 / math.sqrt(3), into=root, out=1.0),
        PLAIN: Tie(std=1.0, into=1.0, out=1.0),
    }
