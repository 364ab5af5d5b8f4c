"""Ensemble: several models with one vocabulary write together, by the mean of the probabilities that they give.

log p = log of the mean of p_m over the models m: a mixture, in which each model may speak up for a token that others
have not thought of. The mean of log-probabilities, the other custom, lets each forbid one. Source: Sutskever et al.
2014 (arXiv 1409.3215), section 3.6, and the custom of fairseq and Sockeye.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.decode.decoding import Cache
from surd.models.seq2seq import Memory, Seq2Seq
from surd.nn.loss import LossSums
from surd.nn.ragged import Ragged

ROWS = 256
"""Target tokens whose probabilities are held at once."""


@dataclass(frozen=True)
class Caches:
    """What each model remembers."""

    members: tuple[Cache, ...]

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        for member in self.members:
            member.reorder(rows)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        for member in self.members:
            member.keep(sentences)


class Ensemble:
    """Models that write as one; their architectures may differ, their vocabularies may not."""

    def __init__(self, members: Sequence[Seq2Seq]):
        assert members, "an ensemble has members"
        self.members = tuple(members)

    @property
    def training(self) -> bool:
        """Whether they are in training."""
        return any(member.training for member in self.members)

    def train(self, mode: bool = True) -> "Ensemble":
        """Sets the mode of all of them."""
        for member in self.members:
            member.train(mode)
        return self

    def parameters(self) -> Iterator[Tensor]:
        """Those of all models."""
        return (parameter for member in self.members for parameter in member.parameters())

    def encode(self, source: Ragged) -> tuple[Memory, ...]:
        """What each model makes of the sources."""
        return tuple(member.encode(source) for member in self.members)

    def start(self, memory: tuple[Memory, ...], beam: int) -> Caches:
        """The cache of each model."""
        return Caches(tuple(member.start(own, beam) for member, own in zip(self.members, memory, strict=True)))

    def step(self, tokens: Int[Tensor, " rows"], cache: Any) -> Float[Tensor, "rows vocabulary"]:
        """Log-probabilities of the next token."""
        steps = zip(self.members, cache.members, strict=True)
        return mixture([member.step(tokens, own) for member, own in steps])

    def loss(self, source: Ragged, target: Ragged, labels: Int[Tensor, " target_total"]) -> LossSums:
        """Sums over all target tokens, as of one model; there is nothing to train here, so nothing is smoothed."""
        hidden = [member(source, target).split(ROWS) for member in self.members]
        nll, correct = torch.zeros((), device=labels.device), torch.zeros((), device=labels.device)
        for rows, wanted in zip(zip(*hidden, strict=True), labels.split(ROWS), strict=True):
            mixed = mixture([member.wide_logits(row) for member, row in zip(self.members, rows, strict=True)])
            nll -= mixed.gather(1, wanted[:, None]).sum()
            correct += (mixed.argmax(1) == wanted).sum()
        return LossSums(loss=nll, nll=nll, correct=correct, tokens=len(labels))


def mixture(logits: Sequence[Float[Tensor, "rows vocabulary"]]) -> Float[Tensor, "rows vocabulary"]:
    """The log of the mean of the softmaxes."""
    return torch.stack([one.log_softmax(1) for one in logits]).logsumexp(0) - log(len(logits))
