"""Declared: what a configuration, a class or a paper says of a model's scales. What is declared is never a fault."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Said = TypeVar("Said")


@dataclass(frozen=True)
class Stated(Generic[Said]):
    """A value, and who states it."""

    value: Said
    by: str
    """`config.query_pre_attn_scalar`, `T5's code`, a paper with its section."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Statements about one model; None where nothing is said, and theory alone judges."""

    family: str | None = None
    """What the model calls itself: `gpt2`."""
    attention: Stated[tuple[float, ...]] | None = None
    """The factor c of softmax(c · q · k): all values that may occur, over layers and kinds of attention."""
    attention_by_path: Stated[Mapping[str, float]] | None = None
    """The same by a part of the site's path, where every layer has its own: `{"h.0.": 0.25}`."""
    qk_norm: Stated[bool] | None = None
    score_cap: Stated[float] | None = None
    """c of c · tanh(x / c) on the scores of attention."""
    embedding: Stated[float] | None = None
    """What rows are multiplied by before they enter the first block."""
    embedding_rounded: Stated[bool] | None = None
    """That the factor is rounded to the type of the rows, as the training did it."""
    head: Stated[float] | None = None
    """What stands between the last norm and the logits, beside the projection."""
    logit_cap: Stated[float] | None = None
    residual: Stated[float] | None = None
    """What a branch is multiplied by before it is added."""
    tied: Stated[bool] | None = None
    """Whether table and head are one matrix."""
    shared: Stated[bool] | None = None
    """Whether all tables of tokens of one size are one matrix: those of encoder and decoder."""
    writes: Stated[bool] | None = None
    """Whether the class makes logits over its tokens."""
    ties: Stated[tuple[tuple[str, str], ...]] | None = None
    """Pairs of parameter names that are declared to be one."""
    epsilon: Stated[float] | None = None
    gain_offset: Stated[bool] | None = None
    """Whether a norm multiplies by 1 + w rather than by w."""
    std: Stated[float] | None = None
    """Standard deviation of the initialisation."""
    fan_in: Stated[float] | None = None
    """g, where matrices start at g/√fan_in and those of queries at g/√(fan_in · d_k)."""
    depth_scaled: Stated[bool] | None = None
    """Whether the outputs of branches start at std / √(2 · layers)."""
    depth_scaled_in: str = ""
    """Beginning of the paths of which that is said: `decoder.`, where another part has a family of its own."""
    padding: Stated[int] | None = None
    """The id of padding."""
    vocabulary: Stated[int] | None = None
    """How many ids the tokenizer has."""
    causal: Stated[bool] | None = None
    positions: Stated[str] | None = None
    """`added`, `rotary`, `bias` or `none`."""
    parameters: Stated[int] | None = None
    """How many different numbers the model is said to have."""
    head_bias: Stated[bool] | None = None
    dtype: Stated[str] | None = None
    released: Mapping[str, str] = field(default_factory=dict)
    """Rules whose deviation was released and trained that way, each with who says so."""


NOTHING = Declared()
