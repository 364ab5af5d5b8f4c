"""How long updates and evaluations take on this machine, and how many of them fit a time budget."""

import copy
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

import torch

from surd.data.batch import Batch
from surd.data.windows import Material
from surd.models.model import Model
from surd.models.seq2seq import Seq2Seq
from surd.nn.special import BOS
from surd.recipe import Recipe
from surd.training.evaluate import FINAL_LINES, LINES_AT_ONCE, WATCHED_LINES
from surd.training.step import train_step

SECONDS = 6.0
"""Longest time spent on timing updates."""
UPDATES = 24
"""Most updates that are timed."""
WARM_UPDATES = 3
"""Updates made before the clock starts: the first ones allocate memory and choose kernels."""
CHECKPOINT_SECONDS, DISK = 0.1, 2e8
"""What writing a checkpoint takes: waiting for the disk, and bytes a second of a plain one (12 bytes a parameter)."""
DECODED = 1.5
"""Longest output of a group of sentences, as a multiple of the mean one."""


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much text there is, as tokens."""

    epoch_tokens: int
    """Real source and target tokens of an epoch."""
    epoch_batches: int
    held_out_tokens: int
    """Real tokens whose nll is taken at each evaluation."""
    held_out_sources: int
    """Sources that are decoded; running text has none."""
    target_length: float
    """Mean target tokens of a pair."""
    final_tokens: int = 0
    """Real tokens whose nll is taken when training ends."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that the pieces of a training take."""

    update: float
    evaluation: float
    final: float
    """Everything after the last update."""
    timed: int
    """How many updates were timed."""

    def expected(self, steps: int, evaluate_every: int) -> float:
        """Seconds that so many updates take, with all evaluations and the final scores."""
        return steps * self.update + (1 + steps // evaluate_every) * self.evaluation + self.final

    def updates_within(self, seconds: float, evaluate_every: int) -> int:
        """The most updates that fit into `seconds`, with all evaluations and the final scores."""
        left = seconds - self.final - self.evaluation
        return max(1, int(left / (self.update + self.evaluation / evaluate_every)))


def measure(model: Model, recipe: Recipe, updates: Sequence[Sequence[Material]], amount: Amount) -> Costs:
    """Times updates and decoding on a copy of the model; neither the model nor the random streams move.

    Each of `updates` is the batches of one update.
    """
    twin = copy.deepcopy(model)
    training = recipe.training
    optimizer = training.optimizer.build(twin)
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        tokens, spent, timed = 0, 0.0, 0
        for number, batches in enumerate(islice(cycle(updates), UPDATES)):
            began = time.perf_counter()
            result = train_step(twin, batches, optimizer, training.clip, training.smoothing, training.terms)
            took = time.perf_counter() - began
            if number >= WARM_UPDATES:
                tokens, spent, timed = tokens + result.source_tokens + result.target_tokens, spent + took, timed + 1
            if spent > SECONDS:
                break
        update = spent / tokens * amount.epoch_tokens / amount.epoch_batches * training.accumulation
        forward = _forward(twin, updates[0][0])
        step = _step(twin, updates[0][0]) if isinstance(twin, Seq2Seq) else 0.0
    nll = forward * amount.held_out_tokens
    watched, final = (_decoding(step, amount, lines) for lines in (WATCHED_LINES, FINAL_LINES))
    candidates = 2 if training.average > 1 else 1
    return Costs(
        update=update,
        evaluation=nll + watched + CHECKPOINT_SECONDS + 12 * sum(map(torch.numel, twin.parameters())) / DISK,
        final=candidates * (final * recipe.decode.beam + forward * amount.final_tokens),
        timed=timed,
    )


def grouped(batches: Iterable[Material], accumulation: int, device: torch.device) -> list[list[Material]]:
    """The first batches, in groups of one update each: as many as are timed, and at least one."""
    moved = [batch.to(device) for batch in islice(batches, UPDATES * accumulation)]
    return [moved[start : start + accumulation] for start in range(0, len(moved), accumulation)]


def _decoding(step: float, amount: Amount, lines: int) -> float:
    """Seconds to decode so many held-out sources greedily, when a step of `LINES_AT_ONCE` sentences takes `step`."""
    groups = min(lines, amount.held_out_sources) / LINES_AT_ONCE
    return groups * amount.target_length * DECODED * step


def _forward(model: Model, batch: Material) -> float:
    """Seconds of the nll of one token."""
    model.eval()
    with torch.no_grad():
        began = time.perf_counter()
        float(model.loss(*batch.inputs, batch.labels).nll)
        return (time.perf_counter() - began) / batch.tokens


def _step(model: Seq2Seq, batch: Material) -> float:
    """Seconds of one greedy step of `LINES_AT_ONCE` sentences."""
    assert isinstance(batch, Batch), "what is decoded has a source"
    with torch.no_grad():
        cache = model.start(model.encode(batch.source), 1)
        tokens = torch.full((len(batch),), BOS, dtype=torch.int64, device=batch.labels.device)
        times = []
        for _ in range(6):
            began = time.perf_counter()
            tokens = model.step(tokens, cache).argmax(1)
            tokens.tolist()  # waits for a device that works ahead
            times.append(time.perf_counter() - began)
    return median(times) * LINES_AT_ONCE / len(batch)


class Clock:
    """Time spent and time left, from what updates and evaluations really took."""

    def __init__(self, before: float, costs: Costs | None) -> None:
        """`before` is what earlier sittings took; `costs` are used until there is something better."""
        self.before, self.costs = before, costs
        self.began = self.since = time.monotonic()
        self.updates: list[tuple[float, int]] = []
        self.evaluation: float | None = costs.evaluation if costs else None

    def spent(self) -> float:
        """Seconds trained, over all sittings."""
        return self.before + time.monotonic() - self.began

    def updated(self, tokens: int) -> None:
        """An update was made; the time since the last event was its own."""
        now = time.monotonic()
        self.updates = [*self.updates[-99:], (now - self.since, tokens)]
        self.since = now

    def pause(self) -> None:
        """What happened since the last event was no update."""
        self.since = time.monotonic()

    def evaluated(self, seconds: float) -> None:
        """An evaluation was made."""
        self.evaluation = seconds

    def rate(self) -> float:
        """Tokens a second of the latest updates."""
        return sum(tokens for _, tokens in self.updates) / max(sum(seconds for seconds, _ in self.updates), 1e-9)

    def left(self, step: int, steps: int, evaluate_every: int) -> float:
        """Seconds to the last update, at the pace of the latest ones."""
        update = sum(seconds for seconds, _ in self.updates) / max(len(self.updates), 1)
        evaluations = steps // evaluate_every - step // evaluate_every
        return max(steps - step, 0) * update + evaluations * (self.evaluation or 0.0)
