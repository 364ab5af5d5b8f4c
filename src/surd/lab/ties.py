"""Ties: tables that are both embedding and pre-softmax projection, with every choice of the factors on both sides."""

import math
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, kw_only=True)
class Tie:
    """One table on both sides."""

    std: float
    """Its standard deviation, s."""
    into: float
    """Factor on a row where it enters the model, a."""
    out: float
    """Factor on the logits, b."""


PAPER, T5, PLAIN = "N(0, 1/√d), rows · √d", "N(0, 1), logits / √d", "N(0, 1)"


def ties(d_model: int) -> dict[str, Tie]:
    """Every choice of table, of factor on its rows and of factor on the logits, by name."""
    root = math.sqrt(d_model)
    tables = {"N(0, 1/√d)": 1 / root, "N(0, 0.02)": 0.02, "U(±0.05)": 0.05 / math.sqrt(3), "N(0, 1)": 1.0}
    into, out = {"": 1.0, ", rows · √d": root}, {"": 1.0, ", logits / √d": 1 / root}
    return {
        f"{table}{rows}{logits}": Tie(std=tables[table], into=into[rows], out=out[logits])
        for table, rows, logits in product(tables, into, out)
    }
