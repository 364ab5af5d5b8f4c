"""Held-out text: its nll, and the score of what the model writes for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from surd.data.batch import Batch
from surd.data.hold_out import HeldOut
from surd.data.tokenizer import TokenizerPair
from surd.decode.decoding import Decoding
from surd.metrics.score import Score
from surd.models.seq2seq import Seq2Seq
from surd.run.text import Scribe
from surd.tasks.task import Task

WATCHED_LINES = 1000
"""Held-out sources that are decoded, greedily, at each evaluation; all, when there are fewer."""
FINAL_LINES = 2000
"""Held-out sources that are decoded at the full beam, when training ends."""
WATCHED_PAIRS = 2000
"""About how many held-out pairs have their nll taken at each evaluation."""
LINES_AT_ONCE = 250
"""Sources between two looks at whether the user wants to stop."""
BATCH_TOKENS = 16_384
"""Lines × longest source × beam that are decoded together."""

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


def held_out_nll(model: Seq2Seq, batches: Iterable[Batch], device: torch.device, stop: Stop = never) -> float:
    """Mean nll in nats for each target piece, without dropout and smoothing."""
    model.eval()
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            if stop():
                raise Stopped
            moved = batch.to(device)
            sums = model.loss(moved.source, moved.target, moved.labels)
            total += float(sums.nll)
            tokens += sums.tokens
    return total / tokens


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Scores held-out text as the task does; the first score selects."""

    task: Task
    tokenizers: TokenizerPair
    texts: Sequence[HeldOut]
    longest: int
    """Tokens of the longest source that is trained on."""

    def __call__(
        self, model: Seq2Seq, lines: int, decoding: Decoding, stop: Stop = never
    ) -> tuple[tuple[Score, ...], int]:
        """The scores of the model on at most `lines` sources, and how many sources that were.

        Sources are decoded in groups of like length: little is wasted, and nobody who wants to stop waits for long.
        """
        texts = sorted(spread(self.texts, lines), key=lambda text: len(text.source))
        scribe = Scribe(model=model.eval(), tokenizers=self.tokenizers, longest=self.longest)
        hypotheses = []
        for answer in scribe.answer((text.source for text in texts), decoding, BATCH_TOKENS, LINES_AT_ONCE):
            hypotheses.append(answer.text)
            if stop():
                raise Stopped
        return tuple(self.task.score(hypotheses, [text.references for text in texts])), len(texts)


def greedy(decoding: Decoding) -> Decoding:
    """The same settings with one hypothesis a sentence: what watches a training."""
    return replace(decoding, beam=1)
