"""Text in, text out: lines are encoded, decoded by beam search and written as text again, in order, one for one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch

from surd.data.batch import by_length, cut
from surd.data.clean import tidy
from surd.data.tokenizer import TokenizerPair
from surd.decode.decoding import Decoding
from surd.decode.generate import generate
from surd.models.seq2seq import Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS

LINES_AT_ONCE = 2048
"""Lines that are read before the first is answered: enough to sort by length, few enough for any input to stream."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model makes of one line."""

    text: str
    score: float
    """Sum of log-probabilities (nats) by length to the power of the penalty; 0 for a line that is empty."""
    cut: int = 0
    """Tokens left out at the end of the source because it is longer than what the model was trained on."""

    @property
    def cut_warning(self) -> str:
        """What to say when something was left out."""
        return f"longer than what the model was trained on: its last {self.cut:,} tokens were left out"


@dataclass(frozen=True, kw_only=True)
class Scribe:
    """A model with its tokenizers: what turns lines into lines."""

    model: Seq2Seq
    tokenizers: TokenizerPair
    longest: int
    """Tokens of the longest source that the model was trained on."""

    def answer(
        self, lines: Iterable[str], decoding: Decoding, batch_tokens: int, at_once: int = LINES_AT_ONCE
    ) -> Iterator[Answer]:
        """One answer a line, in order; an empty line stays empty and does not touch the model.

        `batch_tokens` bounds what is decoded together, lines × longest source × beam; `at_once` lines are read ahead.
        """
        rest = iter(lines)
        while chunk := list(islice(rest, at_once)):
            yield from self._answer_chunk(chunk, decoding, batch_tokens)

    def _answer_chunk(self, lines: Sequence[str], decoding: Decoding, batch_tokens: int) -> list[Answer]:
        encoded = self.encode_sources(lines)
        full = [number for number, ids in enumerate(encoded) if ids]
        sources = [[*encoded[number][: self.longest], EOS] for number in full]
        found = generate(self.model, sources, decoding, batch_tokens) if full else []
        best = [hypotheses[0] for hypotheses in found]
        texts = self.tokenizers.target.decode_all([hypothesis.tokens for hypothesis in best])
        answers = [Answer(text="", score=0.0)] * len(lines)
        for number, text, hypothesis in zip(full, texts, best, strict=True):
            left_out = max(0, len(encoded[number]) - self.longest)
            answers[number] = Answer(text=one_line(text), score=hypothesis.score, cut=left_out)
        return answers

    def encode_sources(self, lines: Sequence[str]) -> list[list[int]]:
        """Source ids of each line, without EOS; an empty line has none."""
        return self.tokenizers.source.encode_all([tidy(line) for line in lines])

    def nll(self, sources: Sequence[str], targets: Sequence[str], batch_tokens: int) -> tuple[float, int]:
        """Sum of negative log-likelihoods (nats, unsmoothed) of the targets, and the number of their tokens.

        EOS counts. Pairs with an empty source have no answer of the model and are left out.
        """
        pairs = [
            ([*source[: self.longest], EOS], [*target, EOS])
            for source, target in zip(
                self.encode_sources(sources), self.tokenizers.target.encode_all([*map(tidy, targets)]), strict=True
            )
            if source
        ]
        lengths = np.array([(len(source), len(target)) for source, target in pairs], dtype=np.int64).reshape(-1, 2)
        order = by_length(lengths[:, 0], lengths[:, 1], np.arange(len(pairs)))
        bounds = cut(lengths[order, 0], lengths[order, 1], batch_tokens)
        total, tokens = 0.0, 0
        for first, last in pairwise(bounds):
            batch = [pairs[number] for number in order[first:last]]
            found = self._loss([source for source, _ in batch], [target for _, target in batch])
            total, tokens = total + found[0], tokens + found[1]
        return total, tokens

    @torch.no_grad()
    def _loss(self, sources: list[list[int]], labels: list[list[int]]) -> tuple[float, int]:
        device = next(self.model.parameters()).device
        source, target = Ragged.from_lists(sources), Ragged.from_lists([[BOS, *label[:-1]] for label in labels])
        follows = Ragged.from_lists(labels).tokens
        sums = self.model.loss(source.to(device), target.to(device), follows.to(device))
        return float(sums.nll), sums.tokens


def one_line(text: str) -> str:
    """The text without line ends: a model that spells bytes can write one, and would shift every line after it."""
    return text.replace("\r", " ").replace("\n", " ")
