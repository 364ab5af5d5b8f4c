"""The settings of a search, what it asks of a model, and what it finds."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.errors import Faults
from surd.nn.ragged import Ragged

WIDEST = 1000
"""Hypotheses of a beam; wider ones find worse outputs (Koehn and Knowles 2017), and all are in memory at once."""
STEEPEST = 10
"""Power of the length beyond which scores leave the range of numbers."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How an output is searched for."""

    beam: int = 5
    """How many unfinished hypotheses are held for each source; 1 is greedy search."""
    length_penalty: float = 1.0
    """α in score = Σ log p / length^α, the end token counted in both: 0 prefers short outputs, 1 is the mean."""
    factor: float = 2.0
    """An output has at most factor · (source length) + extra tokens, both counted with their end tokens; never more
    than the model has learnt positions, where they are learnt."""
    extra: int = 20
    """The tokens that even the output of a short source may have."""

    def __post_init__(self):
        faults = []
        if self.beam < 1:
            faults.append(f"beam: expected at least 1, found {self.beam}")
        if self.beam > WIDEST:
            faults.append(f"beam: expected at most {WIDEST:,}, found {self.beam}")
        if not abs(self.length_penalty) <= STEEPEST:
            faults.append(
                f"length_penalty: expected a number from -{STEEPEST} to {STEEPEST}, found {self.length_penalty}"
            )
        if not (isfinite(self.factor) and self.factor >= 0):
            faults.append(f"factor: expected a number of at least 0, found {self.factor}")
        if self.extra < 1:
            faults.append(f"extra: expected at least 1, found {self.extra}")
        if faults:
            raise Faults(faults)

    def limit(self, source_length: int) -> int:
        """The longest output of a source of this many tokens; a hypothesis that reaches it is closed as it is."""
        return int(self.factor * source_length) + self.extra

    def within(self, positions: int | None) -> "Decoding":
        """The same for a model that has learnt so many positions, or, with none, needs to learn no position."""
        return self if positions is None else Bounded(**vars(self) | {"positions": positions})


@dataclass(frozen=True, kw_only=True)
class Bounded(Decoding):
    """How an output is searched for by a model that cannot count further than the positions it has learnt."""

    positions: int

    def limit(self, source_length: int) -> int:
        return min(super().limit(source_length), self.positions)

    def within(self, positions: int | None) -> Decoding:
        return super().within(self.positions if positions is None else min(positions, self.positions))


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: tuple[int, ...]
    """Without the end token."""
    score: float
    """`log_probability` / length^α: what hypotheses are ranked by."""
    log_probability: float
    """Σ log p of the tokens, and of the end token where there is one."""
    ended: bool
    """False when the length limit closed it before it came to an end token."""


NOT_FINITE = "the model computes values that are not numbers: its weights are damaged or its training has diverged"


class Cache(Protocol):
    """What a model remembers between two steps."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None: ...

    def keep(self, sentences: Int[Tensor, " kept"]) -> None: ...


class Trainable(Protocol):
    """A model that can be in training, which changes what it computes."""

    @property
    def training(self) -> bool: ...

    def train(self, mode: bool = True) -> Any: ...


class Model(Trainable, Protocol):
    """A model that reads sources at once and writes one token at a time; `surd.models.seq2seq` is one."""

    def parameters(self) -> Iterator[Tensor]: ...

    def encode(self, source: Ragged) -> Any: ...

    def start(self, memory: Any, beam: int) -> Cache: ...

    def step(self, tokens: Int[Tensor, " rows"], cache: Any) -> Float[Tensor, "rows vocabulary"]: ...


def begin(model: Model, sources: Sequence[Sequence[int]], beam: int) -> tuple[Cache, torch.device]:
    """Reads the sources, each with its end token; the cache has `beam` rows for each of them."""
    assert all(len(source) > 0 for source in sources), "a source has at least its end token"
    device = next(model.parameters()).device
    return model.start(model.encode(Ragged.from_lists(sources).to(device)), beam), device


@contextmanager
def evaluating(model: Trainable) -> Generator[None]:
    """Dropout and gradients off inside; afterwards the model is in the mode it came in.

    Not `inference_mode`: what a model caches inside (position tables, cast weights) could never be trained through.
    """
    training = model.training
    model.train(False)
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
