"""Weight tying: which of the three big matrices of a translator are one Parameter, declared, made and verified.

A tie is one `Parameter` object under several names. It is counted once, stepped once and stored once; whatever replaces one
name by another object breaks it silently, so `verify` is called after each operation that could.
"""

from enum import StrEnum

from torch import nn

from surd.nn.embedding import Embedding


class Tying(StrEnum):
    """Which matrices are one."""

    NONE = "none"
    """Source table, target table and pre-softmax projection are three matrices."""
    OUTPUT = "output"
    """The target table is the pre-softmax projection. Press & Wolf 2017; Inan et al. 2016."""
    ALL = "all"
    """Source table = target table = pre-softmax projection; needs one joint vocabulary. Vaswani et al. 2017, section 3.4."""


def tie(tying: Tying, source: Embedding, target: Embedding, projection: nn.Module) -> None:
    """Makes the declared names one Parameter: the target's table."""
    if tying is not Tying.NONE:
        projection.weight = target.table
    if tying is Tying.ALL:
        source.table = target.table


def verify(tying: Tying, source: Embedding, target: Embedding, projection: nn.Module) -> None:
    """Asserts that exactly the declared names are one Parameter."""
    assert (projection.weight is target.table) == (tying is not Tying.NONE), f"output tie differs from tying = {tying.value}"
    assert (source.table is target.table) == (tying is Tying.ALL), f"source tie differs from tying = {tying.value}"
