"""Is the model learning? One sentence, from what a model that knows nothing, or only frequencies, would score."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

MARGIN = 0.05
"""Share of a yardstick by which a nll has to lie below it to count as better."""
OVERFIT = 2.0
"""A held-out nll more than this many nats a piece above that of training is called learning by heart."""


def unigram_entropy(labels: Iterable[Tensor], vocabulary: int) -> float:
    """Entropy in nats of the pieces that have to be predicted: the nll of knowing nothing but their frequencies."""
    counts = torch.zeros(vocabulary, dtype=torch.float64)
    for part in labels:
        counts += torch.bincount(part, minlength=vocabulary)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())


@dataclass(frozen=True, kw_only=True)
class Yardsticks:
    """What the nll of a training is held against."""

    uniform: float
    """ln V."""
    frequencies: float
    """`unigram_entropy` of the training labels."""
    start: float
    """Held-out nll before the first step."""


def beats_frequencies(nll: float, yardsticks: Yardsticks) -> bool:
    """Whether a nll can only come from looking at the sentence: clearly below what frequencies alone give."""
    return nll < yardsticks.frequencies * (1 - MARGIN)


def judge(training: float, held_out: float, norm: float, yardsticks: Yardsticks) -> tuple[bool, str]:
    """Whether it learns, and the sentence that says why, from the latest training nll, held-out nll and gradient."""
    uniform, frequencies, start = yardsticks.uniform, yardsticks.frequencies, yardsticks.start
    followed = f"held-out went from {start:.2f} to {held_out:.2f}"
    if not math.isfinite(training) or not math.isfinite(held_out):
        return False, "Not learning, because the loss is not a number."
    if training >= uniform * (1 - MARGIN) and held_out < start * (1 - MARGIN):
        return False, (
            f"Not learning yet: the training nll of {training:.2f} a piece is still no better than guessing evenly "
            f"(ln V = {uniform:.2f}), but it falls: {followed}."
        )
    if training >= uniform * (1 - MARGIN):
        return False, (
            f"Not learning, because the training nll of {training:.2f} a piece is no better than guessing evenly "
            f"(ln V = {uniform:.2f}); gradient norm {norm:.2g}, {followed}. Is the rate too low, or far too high?"
        )
    if not beats_frequencies(training, yardsticks):
        return False, (
            f"Not learning yet, because the training nll of {training:.2f} a piece needs no more than the frequencies "
            f"of the pieces ({frequencies:.2f}); {followed}. What the model reads is not used so far."
        )
    if held_out >= min(start, uniform):
        return False, (
            f"Not learning, because only the training text gets better ({training:.2f} a piece): {followed}. "
            "Does the held-out text come from the same kind of data?"
        )
    if held_out - training > OVERFIT:
        return True, (
            f"Learning, but mostly by heart: training nll {training:.2f} a piece, held-out {held_out:.2f}. "
            "More data, more dropout or a smaller model would help."
        )
    return True, (
        f"Learning: the training nll of {training:.2f} a piece is below what frequencies alone give "
        f"({frequencies:.2f}; ln V = {uniform:.2f}), and {followed}."
    )
