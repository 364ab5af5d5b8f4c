"""Held-out text: its nll, and the scores that are made of it, or of what the model writes for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch

from surd.data.batch import Batch, Batching
from surd.data.hold_out import HeldOut
from surd.data.tokenizer import TokenizerPair
from surd.data.windows import Material, Windows
from surd.decode.decoding import Decoding
from surd.metrics.perplexity import nats_per_token, text_scores, windows_described
from surd.metrics.score import Score
from surd.models.model import Model
from surd.models.seq2seq import Seq2Seq
from surd.run.request import PLAIN, Request
from surd.run.text import Scribe
from surd.tasks import PairTask

WATCHED_LINES = 1000
"""Held-out sources that are decoded, greedily, at each evaluation; all, when there are fewer."""
FINAL_LINES = 2000
"""Held-out sources that are decoded at the full beam, when training ends."""
WATCHED_PAIRS = 2000
"""About how many held-out pairs have their nll taken at each evaluation."""
WATCHED_WINDOWS = 2000
"""Windows of held-out running text that have their nll taken at each evaluation; all, when there are fewer."""
LINES_AT_ONCE = 250
"""Sources between two looks at whether the user wants to stop."""
BATCH_TOKENS = 16_384
"""Lines × longest source × beam that are decoded together."""
AS_FOUND = Request(guard=False)
"""While a model learns, half of what it writes may go in circles: no second search is worth its time."""

Stop = Callable[[], bool]
Item = TypeVar("Item")


class Stopped(Exception):
    """The user asked to stop while held-out text was being measured; the measurement is void."""


def never() -> bool:
    """Nobody asks to stop."""
    return False


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of the items, evenly spaced: the first ones of a sorted file would be all of a kind."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


def watched(batches: Sequence[Batch]) -> list[Batch]:
    """The held-out batches whose nll is taken: all of them, or evenly spaced ones of about `WATCHED_PAIRS` pairs."""
    pairs = sum(len(batch) for batch in batches)
    return spread(batches, max(1, len(batches) * WATCHED_PAIRS // max(pairs, WATCHED_PAIRS)))


def held_out_nll(model: Model, batches: Iterable[Material], device: torch.device, stop: Stop = never) -> float:
    """Mean nll in nats for each target piece, without dropout and smoothing."""
    model.eval()
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            if stop():
                raise Stopped
            moved = batch.to(device)
            sums = model.loss(*moved.inputs, moved.labels)
            total += float(sums.nll)
            tokens += sums.tokens
    return total / tokens


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look at held-out text found."""

    scores: tuple[Score, ...]
    """The first one selects."""
    lines: int
    """How many sources, or windows of running text."""
    basis: str
    """The same in words, and how an output was found."""


class Scorer(Protocol):
    """Scores held-out text as the task does."""

    def watch(self, model: Model, nll: float, stop: Stop) -> Look:
        """While training, where `nll` has just been measured: as much as is worth the time."""
        ...

    def final(self, model: Model, stop: Stop) -> Look:
        """When training ends."""
        ...


@dataclass(frozen=True, kw_only=True)
class PairScorer:
    """Scores what a model writes for held-out sources."""

    task: PairTask
    tokenizers: TokenizerPair
    texts: Sequence[HeldOut]
    longest: int
    """Tokens of the longest source that is trained on."""
    decoding: Decoding

    def watch(self, model: Model, nll: float, stop: Stop = never) -> Look:
        """Greedily, on some sources."""
        scores, lines = self._scores(model, WATCHED_LINES, replace(self.decoding, beam=1), AS_FOUND, stop)
        return Look(scores=scores, lines=lines, basis=f"greedy, {lines:,} sources")

    def final(self, model: Model, stop: Stop = never) -> Look:
        """At the full beam, on more of them."""
        scores, lines = self._scores(model, FINAL_LINES, self.decoding, PLAIN, stop)
        return Look(scores=scores, lines=lines, basis=f"{lines:,} held-out sources")

    def _scores(
        self, model: Model, lines: int, decoding: Decoding, request: Request, stop: Stop
    ) -> tuple[tuple[Score, ...], int]:
        """The scores of the model on at most `lines` sources, and how many sources that were.

        Sources are decoded in groups of like length: little is wasted, and nobody who wants to stop waits for long.
        """
        assert isinstance(model, Seq2Seq), "pairs are translated"
        texts = sorted(spread(self.texts, lines), key=lambda text: len(text.source))
        scribe = Scribe(model=model.eval(), tokenizers=self.tokenizers, longest=self.longest)
        hypotheses = []
        sources = (text.source for text in texts)
        for answer in scribe.answer(sources, decoding, BATCH_TOKENS, LINES_AT_ONCE, request):
            hypotheses.append(answer.text)
            if stop():
                raise Stopped
        return tuple(self.task.score(hypotheses, [text.references for text in texts])), len(texts)


@dataclass(frozen=True, kw_only=True)
class TextScorer:
    """Measures what a language model makes of held-out text."""

    data: Windows
    batching: Batching
    device: torch.device

    def watch(self, model: Model, nll: float, stop: Stop = never) -> Look:
        """What has been measured anyway."""
        windows = min(WATCHED_WINDOWS, self.data.held_out_sequences)
        score = nats_per_token(nll * windows, windows, self._described())
        return Look(scores=(score,), lines=windows, basis=f"{windows:,} windows")

    def final(self, model: Model, stop: Stop = never) -> Look:
        """The whole of the held-out text."""
        about, windows = self.data.held_out.about, self.data.held_out_sequences
        nll = held_out_nll(model, self.data.held_out_batches(self.batching), self.device, stop)
        scores = text_scores(nll * about.tokens, about.tokens, about.bytes, self._described(), about.unknown)
        return Look(scores=scores, lines=windows, basis=f"{windows:,} held-out windows")

    def _described(self) -> str:
        return windows_described(self.data.context, self.data.report.unit)
