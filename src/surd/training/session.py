"""One sitting of a training: model, optimiser, data and folder, and the state that ties them together."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch.optim import Optimizer

from surd.data.batch import Batch
from surd.data.clean import CAUSES, Fate
from surd.data.stream import Prepared
from surd.data.windows import Material, WindowBatch, Windows
from surd.device import default_device, default_precision, keep_freed_memory
from surd.errors import SurdError
from surd.metrics.score import own_version
from surd.models.model import Model
from surd.recipe import Recipe
from surd.run import Run
from surd.seed import seed_all
from surd.tasks import PairTask
from surd.training.checkpoint import Checkpoints, State
from surd.training.evaluate import WATCHED_WINDOWS, PairScorer, Scorer, TextScorer, watched
from surd.training.pace import Amount
from surd.training.step import StepResult, train_step
from surd.training.verdict import Yardsticks, unigram_entropy

COUNTED_TOKENS = 500_000
"""About how many target pieces are counted for the frequencies that the verdict is measured against."""

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Session:
    """What stays the same object while a training runs."""

    run: Run
    recipe: Recipe
    device: torch.device
    model: Model
    optimizer: Optimizer
    data: Prepared | Windows
    held_out: Sequence[Material]
    """What has its nll taken while training."""
    scorer: Scorer
    checkpoints: Checkpoints

    @property
    def precision(self) -> str:
        """How the activations are computed."""
        return "bf16" if self.model.compute_dtype == torch.bfloat16 else "fp32"

    def setting(self) -> dict[str, str]:
        """What weights can depend on besides recipe and data, to the last bit."""
        return {
            "surd": own_version(),
            "torch": torch.__version__,
            "device": str(self.device),
            "precision": self.precision,
            "threads": str(torch.get_num_threads()),
        }

    def updates(self, state: State) -> "Iterator[Update]":
        """The batches of each update from here on, without end, and where each leaves the data."""
        stream = self._batches(state.epoch, state.batches)
        while True:
            group = list(itertools.islice(stream, self.recipe.training.accumulation))
            _, epoch, done = group[-1]
            yield Update(tuple(batch.to(self.device) for batch, _, _ in group), epoch, done)

    def step(self, number: int, update: "Update", failed: Callable[[], object] = lambda: None) -> StepResult:
        """Makes the update `number`, counted from 1; `failed` as in `train_step`."""
        training = self.recipe.training
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        return train_step(
            self.model, update.batches, self.optimizer, training.clip, training.smoothing, training.terms, failed
        )

    def rate(self, number: int) -> float:
        """The learning rate of that update."""
        training = self.recipe.training
        if training.steps is None:
            raise SurdError(f"{self.run.recipe_file}: training.steps is missing: how many updates should there be?")
        return training.schedule(number, training.steps, self.recipe.model.d_model)

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Material, int, int]]:
        """Batches with their epoch and the number of batches of that epoch consumed with them."""
        while True:
            done = start
            for batch in self.data.batches(self.recipe.batch, self.recipe.seed, epoch, start):
                done += 1
                refuse_damaged(batch, self.model.vocabularies, self.run)
                yield batch, epoch, done
            epoch, start = epoch + 1, 0

    def amount(self) -> Amount:
        """How much text there is."""
        batches, watched = self.epoch_batches(0), sum(batch.tokens for batch in self.held_out)
        if isinstance(self.data, Windows):
            return text_amount(self.data.tokens, batches, watched, self.data.held_out.about.tokens)
        return Amount(
            epoch_tokens=self.data.source_tokens + self.data.target_tokens,
            epoch_batches=batches,
            held_out_tokens=watched,
            held_out_sources=len(self.data.texts),
            target_length=self.data.target_tokens / self.data.pairs,
        )

    def epoch_batches(self, epoch: int) -> int:
        """How many batches an epoch has; it varies a little, as pairs are put together anew."""
        return self.data.batch_count(self.recipe.batch, self.recipe.seed, epoch)

    def yardsticks(self, start: float) -> Yardsticks:
        """What the nll of this training is held against."""
        vocabulary = self.model.vocabularies[-1]
        counted = self._labels()
        uniform = float(torch.tensor(float(vocabulary)).log())
        return Yardsticks(uniform=uniform, frequencies=unigram_entropy(counted, vocabulary), start=start)

    def _labels(self) -> Iterator[torch.Tensor]:
        seen = 0
        for batch in self.data.batches(self.recipe.batch, self.recipe.seed, 0):
            yield batch.labels
            seen += batch.labels.numel()
            if seen > COUNTED_TOKENS:
                return

    def resume(self) -> State:
        """The newest checkpoint restored, or a fresh start; what later sittings need to know is in the state."""
        steps = self.checkpoints.steps()
        if steps:
            return self.checkpoints.restore(steps[-1], self.model, self.optimizer)
        return State(setting=self.setting())

    def too_long(self) -> tuple[str, ...]:
        """Pairs that turned out to be too long when they were cut into tokens."""
        if isinstance(self.data, Windows):
            return ()
        drops = [drop for drop in self.data.report.dropped if drop.cause == CAUSES[Fate.LONG]]
        limit = self.recipe.data.max_length
        return tuple(
            f"{drop.count:,} pairs are left out as too long (more than {limit:,} tokens on a side): {drop.examples[0]}"
            for drop in drops
        )

    def notes(self, state: State) -> tuple[str, ...]:
        """What a resumed training is not equal in to the one it goes on with."""
        now = self.setting()
        changed = [f"{key} {old} before, {now[key]} now" for key, old in state.setting.items() if now.get(key) != old]
        if not changed:
            return ()
        return (f"Goes on correctly, but not equal to the bit: {'; '.join(changed)}.",)


@dataclass(frozen=True)
class Update:
    """The batches of one update."""

    batches: tuple[Material, ...]
    epoch: int
    consumed: int
    """Batches of `epoch` consumed when this update is done."""


def begin(run: Run) -> Session:
    """A session in a run's folder, seeded, with first weights."""
    keep_freed_memory()
    recipe = run.recipe
    device = default_device()
    seed_all(recipe.seed)
    model = placed(run.first_model(), recipe, device)
    data, held_out, scorer = _text(run, device) if recipe.data.text is not None else _pairs(run)
    for batch in held_out:
        refuse_damaged(batch, model.vocabularies, run)
    return Session(
        run=run,
        recipe=recipe,
        device=device,
        model=model,
        optimizer=recipe.training.optimizer.build(model),
        data=data,
        held_out=held_out,
        scorer=scorer,
        checkpoints=Checkpoints(run.checkpoint_folder, recipe.training.keep),
    )


def _pairs(run: Run) -> tuple[Prepared, list[Batch], Scorer]:
    """The data of a run that learns from pairs, what of them is watched, and how they are scored."""
    recipe, task, data = run.recipe, run.task, Prepared(run.data_folder)
    assert isinstance(task, PairTask), "a recipe with pairs has such a task"
    scorer = PairScorer(
        task=task,
        tokenizers=run.tokenizers,
        texts=data.texts,
        longest=recipe.data.max_length,
        decoding=recipe.decode,
    )
    return data, watched(list(data.held_out_batches(recipe.batch))), scorer


def _text(run: Run, device: torch.device) -> tuple[Windows, list[WindowBatch], Scorer]:
    """The same of a run that learns from running text."""
    recipe = run.recipe
    data = Windows(run.data_folder, recipe.data.context)
    held_out = list(data.held_out_batches(recipe.batch, WATCHED_WINDOWS))
    return data, held_out, TextScorer(data=data, batching=recipe.batch, device=device)


def refuse_damaged(batch: Material, vocabularies: Sequence[int], run: Run) -> None:
    """Refuses tokens that no vocabulary has: bits of the prepared text have changed."""
    for sequences, size in zip(batch.inputs, vocabularies, strict=True):
        if (highest := int(sequences.tokens.max())) >= size:
            raise SurdError(
                f"{run.data_folder}: damaged, it has a token {highest:,} where the vocabulary has {size:,}. "
                "Restore it from a copy, or train anew."
            )


def text_amount(tokens: int, batches: int, watched: int, held_out: int) -> Amount:
    """How much running text there is, where nothing is decoded."""
    return Amount(
        epoch_tokens=tokens,
        epoch_batches=batches,
        held_out_tokens=watched,
        held_out_sources=0,
        target_length=0.0,
        final_tokens=held_out,
    )


def placed(model: M, recipe: Recipe, device: torch.device) -> M:
    """The model on its device, computing as the recipe says."""
    chosen = recipe.training.precision
    chosen = default_precision(device) if chosen == "auto" else chosen
    model.compute_dtype = torch.bfloat16 if chosen == "bf16" else torch.float32
    return model.to(device)


def advance(state: State, update: Update, loss: float, nll: float, targets: int, tokens: int) -> State:
    """The state after an update; loss and nll are means over its target tokens."""
    window = (state.window[0] + loss * targets, state.window[1] + nll * targets, state.window[2] + targets)
    return replace(
        state,
        step=state.step + 1,
        epoch=update.epoch,
        batches=update.consumed,
        tokens=state.tokens + tokens,
        window=window,
    )
