"""Weight tying: which of a model's big matrices are one Parameter, declared, made and verified.

A translator has three (the tables of source and target, and the pre-softmax projection), a language model two.

A tie is one `Parameter` object under several names. It is counted once, stepped once and stored once; whatever replaces
one name by another object breaks it silently, so `verify` is called after each operation that could.
"""

from enum import StrEnum

from torch import nn

from surd.nn.embedding import Embedding
from surd.nn.norm import NormOrder


class Tying(StrEnum):
    """Which matrices are one."""

    NONE = "none"
    """Source table, target table and pre-softmax projection are three matrices."""
    OUTPUT = "output"
    """The target table, or the only one, is the pre-softmax projection. Press & Wolf 2017; Inan et al. 2016."""
    ALL = "all"
    """Source table = target table = projection; needs one joint vocabulary. Vaswani et al. 2017, section 3.4."""


def first_gain(tying: Tying, order: NormOrder, d_model: int) -> float:
    """Where the gain of the norm before the projection starts: d_model^-¼ for a tied pre-norm stack, else 1.

    The last state of a fresh pre-norm stack still points along the row it read. Where that row is also a row of the
    projection, its own token's logit is gain · cos · √d_model among others of size gain: an untrained model that copies
    its input, 2.9 nats above even guessing for 43 phones at d_model 256. A post-norm stack halves that direction
    in each sub-layer and needs no such start. See docs/decisions/0004-right-start.md.
    """
    return d_model**-0.25 if order is NormOrder.PRE and tying is not Tying.NONE else 1.0


def tie(tying: Tying, source: Embedding | None, target: Embedding, projection: nn.Module) -> None:
    """Makes the declared names one Parameter: the target's table. A language model has no source."""
    if tying is not Tying.NONE:
        projection.weight = target.table
    if tying is Tying.ALL and source is not None:
        source.table = target.table


def verify(tying: Tying, source: Embedding | None, target: Embedding, projection: nn.Module) -> None:
    """Asserts that exactly the declared names are one Parameter."""
    assert (projection.weight is target.table) == (tying is not Tying.NONE), (
        f"output tie differs from tying = {tying.value}"
    )
    if source is not None:
        assert (source.table is target.table) == (tying is Tying.ALL), f"source tie differs from tying = {tying.value}"
