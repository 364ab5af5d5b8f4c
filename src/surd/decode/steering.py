"""Steering: a model some of whose next tokens are withheld at a step, while every score stays that of the model alone.

What is withheld gives its share of the probability to PAD, which no search ever writes. So a search needs to know
nothing of prefixes or guards: it is given a steered model in the model's place.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surd.decode.decoding import Cache, Model
from surd.nn.ragged import Ragged
from surd.nn.special import PAD


class Steered(ABC):
    """A model that is given its choices; a subclass says what may be written next."""

    def __init__(self, model: Model):
        self.model = model

    @property
    def training(self) -> bool:
        """Whether the model is in training."""
        return self.model.training

    def train(self, mode: bool = True) -> Any:
        """Sets the mode of the model."""
        return self.model.train(mode)

    def parameters(self) -> Iterator[Tensor]:
        """Those of the model."""
        return iter(self.model.parameters())

    def encode(self, source: Ragged) -> Any:
        """As the model does."""
        return self.model.encode(source)

    def start(self, memory: Any, beam: int) -> "Written":
        """The cache of the model, beside what has been written."""
        return Written(self.model.start(memory, beam), beam)

    def step(self, tokens: Int[Tensor, " rows"], cache: "Written") -> Float[Tensor, "rows vocabulary"]:
        """The scores of the model, those that are withheld at -inf."""
        logits = self.model.step(tokens, cache.model)
        cache.read(tokens)
        return self.steer(logits, cache)

    @abstractmethod
    def steer(self, logits: Float[Tensor, "rows vocabulary"], cache: "Written") -> Float[Tensor, "rows vocabulary"]:
        """Withholds what may not come next, by `withheld`."""


class Written:
    """What a steered model remembers: the model's cache, which sentences are left, and the tokens of every row."""

    def __init__(self, model: Cache, beam: int):
        self.model, self.beam = model, beam
        self.tokens: Int[Tensor, "rows length"] | None = None
        """With the begin token."""
        self.kept: Int[Tensor, " sentences"] | None = None
        """Where each sentence stood at the start; None while all are there."""

    def read(self, tokens: Int[Tensor, " rows"]) -> None:
        """One token more a row."""
        new = tokens[:, None]
        self.tokens = new if self.tokens is None else torch.cat([self.tokens, new], 1)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        self.model.reorder(rows)
        if self.tokens is not None:
            self.tokens = self.tokens[rows]

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        self.model.keep(sentences)
        self.kept = sentences if self.kept is None else self.kept[sentences]
        if self.tokens is not None:
            self.tokens = self.tokens.unflatten(0, (-1, self.beam))[sentences].flatten(0, 1)

    def of_rows(self, each: Tensor) -> Tensor:
        """What `each` says of the sentences as they stood at the start, for every row that is left."""
        left = each if self.kept is None else each[self.kept.to(each.device)]
        return left.repeat_interleave(self.beam, 0)


def withheld(
    logits: Float[Tensor, "rows vocabulary"], hidden: Bool[Tensor, "rows vocabulary"]
) -> Float[Tensor, "rows vocabulary"]:
    """The scores where `hidden` tokens cannot be written, and the others have the log-probability they had."""
    rest = logits.masked_fill(~hidden, float("-inf")).logsumexp(1)
    steered = logits.masked_fill(hidden, float("-inf"))
    steered[:, PAD] = torch.logaddexp(steered[:, PAD], rest)
    return steered
