"""Sampling: a text goes on, token by token, by chance or by the likeliest one; the same alone or in any batch.

A model reads at most `context` tokens. While a text is no longer than that it is read from its beginning; beyond, from
a place that moves on by half a context whenever the window is full. The place follows from the length of the text
alone, so what a text is continued by depends on nothing else that is in the batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surd.decode.candidates import NEVER
from surd.decode.decoding import NOT_FINITE, Trainable, evaluating
from surd.errors import Faults, SurdError
from surd.nn.special import EOS, UNK

UNWRITABLE = [*NEVER, UNK]
"""Tokens that spell nothing: they are left out before the chances are shared."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a text is gone on with."""

    temperature: float = 1.0
    """Scores are divided by it: below 1 the likely tokens get likelier, 0 takes the likeliest one (greedy)."""
    top_k: int | None = None
    """Only so many of the likeliest tokens are drawn from; none draws from all (Fan et al. 2018)."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability are drawn from (Holtzman et al. 2020)."""
    max_length: int = 256
    """Tokens that are added at most."""

    def __post_init__(self):
        faults = []
        if not (isfinite(self.temperature) and self.temperature >= 0):
            faults.append(f"temperature: expected a number of at least 0, found {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            faults.append(f"top_k: expected at least 1, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            faults.append(f"top_p: expected a share above 0 and up to 1, found {self.top_p}")
        if self.max_length < 1:
            faults.append(f"max_length: expected at least 1, found {self.max_length}")
        if faults:
            raise Faults(faults)


def without_chance(given: Mapping[str, object]) -> list[str]:
    """What to say of settings that mean something where outputs are drawn, to who also asked for a temperature of 0."""
    names = [name for name, value in given.items() if value is not None]
    if not names:
        return []
    mean = "means" if len(names) == 1 else "mean"
    told = f"a temperature of 0 takes the likeliest token each time, so that {', '.join(names)} {mean} nothing"
    return [f"{told}: raise the temperature, or leave out the rest"]


@dataclass(frozen=True)
class Continuation:
    """What a text was continued by."""

    tokens: tuple[int, ...]
    """Without the end token."""
    ended: bool
    """False when it was closed at its longest, before it came to an end."""


class Cache(Protocol):
    """What a model remembers between two steps."""

    def keep(self, rows: Int[Tensor, " kept"]) -> None: ...


class Reader(Trainable, Protocol):
    """A model that reads the beginning of a text at once, then a token at a time; `surd.models.language` is one."""

    def parameters(self) -> Iterator[Tensor]: ...

    def read(self, tokens: Int[Tensor, "rows length"]) -> tuple[Float[Tensor, "rows vocabulary"], Any]: ...

    def step(self, tokens: Int[Tensor, " rows"], past: Any) -> Float[Tensor, "rows vocabulary"]: ...


def window_start(length: int, context: int) -> int:
    """Where the window begins that a model reads of a text of `length` tokens: it has more than half a context."""
    if length <= context:
        return 0
    half = max(1, context // 2)
    return -(-(length - context) // half) * half


def pick(
    logits: Float[Tensor, "rows vocabulary"], settings: Sampling, draws: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """The next token of each row by its own number in [0, 1): where that falls in what is kept of the probability.

    The likeliest token comes first, of equal ones the lower id. In float64: rounding has no say in what is kept.
    """
    logits = logits.double()
    logits[:, UNWRITABLE] = float("-inf")
    if settings.temperature == 0:
        return logits.argmax(1)
    # The highest score is taken off first, so that no temperature is too low to divide by.
    chances = ((logits - logits.amax(1, keepdim=True)) / settings.temperature).softmax(1)
    chances, tokens = chances.sort(dim=1, descending=True, stable=True)
    if settings.top_k is not None:
        chances[:, settings.top_k :] = 0
    before = chances.cumsum(1) - chances
    chances[before >= settings.top_p * chances.sum(1, keepdim=True)] = 0
    reached = chances.cumsum(1)
    place = (reached <= draws[:, None] * reached[:, -1:]).sum(1).clamp(max=chances.shape[1] - 1)
    return tokens.gather(1, place[:, None]).squeeze(1)


def continue_texts(
    model: Reader,
    texts: Sequence[Sequence[int]],
    settings: Sampling,
    context: int,
    seeds: Sequence[int],
    ends: bool,
) -> list[Continuation]:
    """A continuation of each text (ids, at least one), drawn by the seed beside it; `ends` at an EOS.

    All rows stand at one length: a text that is longer than another is still being read while that one grows.
    """
    found: list[Continuation | None] = [None] * len(texts)
    if not texts:
        return []
    device = next(model.parameters()).device
    home = torch.device("cpu") if device.type == "mps" else device  # which has no float64 to draw in
    rows = _Rows(texts, settings, seeds, home)
    with evaluating(model):
        past, start = None, 0
        while len(rows.numbers):
            if rows.skip():
                past = None
            length = rows.length
            if past is None or window_start(length, context) != start:
                start = window_start(length, context)
                logits, past = model.read(rows.tokens[:, start:length].to(device))
            else:
                logits = model.step(rows.tokens[:, length - 1].to(device), past)
            if not logits.isfinite().all():
                raise SurdError(NOT_FINITE)
            for number, continuation in rows.advance(pick(logits.to(home), settings, rows.draws()), ends):
                found[number] = continuation
            kept = rows.open
            if not kept.all():
                rows.keep(kept)
                past.keep(kept.nonzero().squeeze(1).to(device))
    return [one for one in found if one is not None]


class _Rows:
    """The texts that are still growing, all read up to one length."""

    def __init__(
        self, texts: Sequence[Sequence[int]], settings: Sampling, seeds: Sequence[int], device: torch.device
    ) -> None:
        lengths = [len(text) for text in texts]
        assert min(lengths) > 0, "a text has at least the token that documents begin with"
        self.length = 0
        self.numbers = torch.arange(len(texts), device=device)
        self.given = torch.tensor(lengths, device=device)
        """Tokens that each was given."""
        width = max(lengths) + settings.max_length
        self.tokens = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=device)
        self.limit = settings.max_length
        self.open: Bool[Tensor, " rows"] = torch.ones(len(texts), dtype=torch.bool, device=device)
        chance = settings.temperature > 0
        self._draws = torch.stack(
            [
                torch.rand(self.limit, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
                if chance
                else torch.zeros(self.limit, dtype=torch.float64)
                for seed in seeds
            ]
        ).to(device)

    def skip(self) -> bool:
        """Goes to where the first of them grows, unless one does already."""
        shortest = int(self.given.min())
        self.length, before = max(self.length, shortest), self.length
        return self.length != before

    def draws(self) -> Float[Tensor, " rows"]:
        """The number that decides the next token of each; any will do while a text is being read."""
        added = (self.length - self.given).clamp(min=0)
        return self._draws.gather(1, added[:, None]).squeeze(1)

    def advance(self, chosen: Int[Tensor, " rows"], ends: bool) -> list[tuple[int, Continuation]]:
        """One token more for each, its own where it has one; gives those that are complete with it."""
        reading = self.length < self.given
        column = self.tokens[:, self.length]
        self.tokens[:, self.length] = torch.where(reading, column, chosen)
        self.length += 1
        ended = ~reading & (chosen == EOS) & ends
        self.open = ~(ended | (self.length - self.given >= self.limit))
        complete = []
        for row in (~self.open).nonzero().squeeze(1).tolist():
            tokens = self.tokens[row, int(self.given[row]) : self.length].tolist()
            is_ended = bool(ended[row])
            complete.append(
                (int(self.numbers[row]), Continuation(tuple(tokens[:-1] if is_ended else tokens), is_ended))
            )
        return complete

    def keep(self, rows: Bool[Tensor, " rows"]) -> None:
        """Forgets the rows that are complete."""
        self.numbers, self.given, self.tokens = self.numbers[rows], self.given[rows], self.tokens[rows]
        self._draws = self._draws[rows]
