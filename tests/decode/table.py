"""A model that is a table: logits after each beginning are drawn from a seed, so that every output can be listed."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS, PAD


@dataclass
class TableCache:
    sources: list[tuple[int, ...]]
    beam: int
    beginnings: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self):
        self.beginnings = [()] * (len(self.sources) * self.beam)

    def reorder(self, rows: Tensor) -> None:
        assert all(row // self.beam == new // self.beam for new, row in enumerate(rows.tolist())), "left its sentence"
        self.beginnings = [self.beginnings[row] for row in rows.tolist()]

    def keep(self, sentences: Tensor) -> None:
        beam = self.beam
        self.beginnings = [b for n in sentences.tolist() for b in self.beginnings[n * beam : (n + 1) * beam]]
        self.sources = [self.sources[n] for n in sentences.tolist()]


class Table(nn.Module):
    """Each step reads a row for each beginning.

    `levels`: with a few levels of logits instead of a continuum, many outputs tie."""

    def __init__(self, vocabulary: int, seed: int, levels: int | None = None):
        super().__init__()
        self.vocabulary, self.seed, self.levels = vocabulary, seed, levels
        self.weight = nn.Parameter(torch.zeros(1))
        self.known: dict[tuple, Tensor] = {}
        self.rows = 0  # how many were asked for, all steps together

    def encode(self, source: Ragged) -> list[tuple[int, ...]]:
        return [tuple(tokens.tolist()) for tokens in source.tokens.split(source.lengths)]

    def start(self, memory: list[tuple[int, ...]], beam: int) -> TableCache:
        return TableCache(list(memory), beam)

    def step(self, tokens: Tensor, cache: TableCache) -> Tensor:
        assert not self.training, "dropout would be on"
        self.rows += len(tokens)
        cache.beginnings = [(*begun, token) for begun, token in zip(cache.beginnings, tokens.tolist(), strict=True)]
        return torch.stack([self.logits(cache.sources[n // cache.beam], b) for n, b in enumerate(cache.beginnings)])

    def logits(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> Tensor:
        if (source, beginning) not in self.known:
            self.known[source, beginning] = self.draw(source, beginning)
        return self.known[source, beginning]

    def draw(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, source, beginning)) % 2**31)
        if self.levels is None:
            return 2 * torch.randn(self.vocabulary, generator=generator)
        return torch.randint(self.levels, (self.vocabulary,), generator=generator).float()


@dataclass(frozen=True)
class Listed:
    """One output of a table, with what the order among equals depends on."""

    tokens: tuple[int, ...]
    score: float
    log_probability: float
    ended: bool
    order: tuple

    @property
    def rank(self) -> tuple:
        return (-self.score, len(self.tokens) + self.ended, self.order)


def all_outputs(model: Table, source: list[int], limit: int, length_penalty: float) -> list[Listed]:
    """Every output of at most `limit` tokens, best first.

    The additions are those of the search, in its order, so that two outputs tie here when they tie there.
    """
    found = []
    unfinished = [((BOS,), 0.0, (0.0, ()))]
    for length in range(1, limit + 1):
        logits = torch.stack([model.logits(tuple(source), beginning) for beginning, _, _ in unfinished])
        never = logits[:, [PAD, BOS]].logsumexp(1)
        logits[:, [PAD, BOS]] = -torch.inf
        highest = logits.amax(1)
        normaliser = torch.logaddexp((logits - highest[:, None]).exp().sum(1).log() + highest, never)
        values = logits + (torch.tensor([total for _, total, _ in unfinished]) - normaliser)[:, None]
        scores = values / length**length_penalty
        longer = []
        for (beginning, _, order), row, row_scores in zip(unfinished, values.tolist(), scores.tolist(), strict=True):
            for token in range(EOS, model.vocabulary):
                deeper = (-row[token], order, token)
                if token == EOS or length == limit:
                    tokens = beginning[1:] if token == EOS else (*beginning[1:], token)
                    found.append(Listed(tokens, row_scores[token], row[token], token == EOS, deeper))
                else:
                    longer.append(((*beginning, token), row[token], deeper))
        unfinished = longer
    return sorted(found, key=lambda listed: listed.rank)
