"""Before the first update: from what was asked for to a plan, and from a plan to a run's folder that can be trained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from surd.data.batch import Batch, Batching, by_length, cut
from surd.data.corpus import DataSettings
from surd.data.prepare import learn_tokenizers, prepare, survey
from surd.data.survey import Survey
from surd.data.tokenizer import BPE, TokenizerPair, Unigram
from surd.device import default_device, default_precision
from surd.errors import SurdError
from surd.models.seq2seq import Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.part import structure
from surd.recipe import VOCABULARY_SIZES, Draft, Recipe, choose_task, derive, with_steps, write
from surd.run import Run, refuse_occupied
from surd.seed import derive as derive_seed
from surd.seed import seed_all
from surd.training.evaluate import WATCHED_PAIRS, Stop, never, spread
from surd.training.events import Event, Preparing
from surd.training.loop import train
from surd.training.pace import Amount, Costs, grouped, measure
from surd.training.session import begin, placed

SAMPLED_PAIRS = 20_000
"""Pairs of the survey's sample that are tokenised for an estimate."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would be trained on which data, and why; nothing is written yet."""

    survey: Survey
    draft: Draft
    """What was asked for."""
    recipe: Recipe
    reasons: Mapping[str, str]

    @property
    def fit(self) -> bool:
        """Whether a vocabulary may come out smaller than planned: unless somebody asked for exactly its size."""
        return not any(self.draft.given(path) and path not in self.draft.limits for path in VOCABULARY_SIZES)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a few updates on a sample of the data say about a plan."""

    costs: Costs
    steps: int
    seconds: float
    parameters: int
    shared: int
    vocabularies: tuple[int, int]
    epochs: float
    """How often every pair is seen in so many updates."""


def plan(draft: Draft) -> Plan:
    """Reads the data and settles every setting; whatever is wrong with either is refused here."""
    draft.check()
    found = survey(structure(DataSettings, draft.values.get("data", {}), "data"))
    task, _ = choose_task(found, draft)
    if task.drop_copies:
        found = found.without_copies()
    recipe, reasons = derive(found, draft)
    return Plan(survey=found, draft=draft, recipe=recipe, reasons=reasons)


def train_new(plan: Plan, out: Path, stop: Stop = never) -> Iterator[Event]:
    """Makes the run's folder and trains in it; a failure before the first update leaves no folder."""
    refuse_occupied(out)
    recipe, reasons = plan.recipe, dict(plan.reasons)
    names = [Path(name).name for name in (recipe.data.source, recipe.data.target) if name]
    with Run.create(out, recipe.task, names) as run:
        yield Preparing(doing="the tokenizers")
        tokenizers = learn_tokenizers(recipe.tokenizer, plan.survey, plan.fit)
        tokenizers.save(run.tokenizer_folder)
        recipe = settled(fitted(recipe, tokenizers, reasons), reasons)
        yield Preparing(doing="the ids of all pairs")
        prepare(recipe.data, tokenizers, plan.survey, run.data_folder)
        write(recipe, run.recipe_file, reasons, plan.draft.comments)
        yield Preparing(doing="a short calibration of the time an update takes here")
        costs = _calibrated(run)
        recipe, _, more = budgeted(recipe, costs)
        if more:
            write(recipe, run.recipe_file, reasons | more, plan.draft.comments)
    yield from train(Run(out), stop, costs)


def fitted(recipe: Recipe, tokenizers: TokenizerPair, reasons: dict[str, str]) -> Recipe:
    """The recipe with the sizes that the vocabularies really have."""
    parts = {"source": recipe.tokenizer.source, "target": recipe.tokenizer.target}
    for side, size in (("source", tokenizers.source.size), ("target", tokenizers.target.size)):
        part = parts[side]
        if isinstance(part, BPE | Unigram) and part.size != size:
            parts[side] = replace(part, size=size)
            reasons[f"tokenizer.{side}.size"] = f"all that the text gives, in place of {part.size:,}"
    tokenizer = replace(recipe.tokenizer, source=parts["source"], target=parts["target"])
    return replace(recipe, tokenizer=tokenizer)


def settled(recipe: Recipe, reasons: dict[str, str]) -> Recipe:
    """The recipe with its precision decided: a run that goes on elsewhere, or another day, computes as it began."""
    if recipe.training.precision != "auto":
        return recipe
    chosen = default_precision(default_device())
    reasons["training.precision"] = "the faster of fp32 and bf16 on the machine that began this run"
    return replace(recipe, training=replace(recipe.training, precision=chosen))


def budgeted(recipe: Recipe, costs: Costs) -> tuple[Recipe, int, dict[str, str]]:
    """The recipe with its minutes turned into updates, their number, and the reasons of what that changes."""
    steps, minutes = recipe.training.steps, recipe.training.minutes
    if steps is not None:
        return recipe, steps, {}
    if minutes is None:
        raise SurdError("training: expected steps or minutes, found neither")
    shorter, reasons, steps = recipe, {}, 1
    for _ in range(2):  # evaluations that come closer together, as the updates are few, leave time for fewer updates
        steps = costs.updates_within(60 * minutes, shorter.training.evaluate_every)
        reason = f"{minutes:g} minutes at {1000 * costs.update:.1f} ms an update, measured on this machine"
        shorter, reasons = with_steps(recipe, steps, reason)
    return shorter, steps, reasons


def estimate(plan: Plan) -> Estimate:
    """Times a few updates of the planned model on a sample of the pairs, in memory."""
    recipe = plan.recipe
    device = default_device()
    tokenizers = learn_tokenizers(recipe.tokenizer, plan.survey, plan.fit)
    pairs = spread(plan.survey.sample, SAMPLED_PAIRS)
    sources = tokenizers.source.encode_all([source for source, _ in pairs])
    targets = tokenizers.target.encode_all([target for _, target in pairs])
    longest = recipe.data.max_length
    kept = [pair for pair in zip(sources, targets, strict=True) if max(map(len, pair)) <= longest]
    if not kept:
        raise SurdError(f"every pair of a sample has more than {longest} tokens on a side; raise data.max_length")
    batches = _batches(kept, recipe.batch, recipe.seed)
    seed_all(recipe.seed)
    vocabularies = (tokenizers.source.size, tokenizers.target.size)
    model = placed(Seq2Seq(recipe.model, *vocabularies), recipe, device)
    report, tokens = plan.survey.report, sum(batch.tokens for batch in batches)
    amount = Amount(
        epoch_tokens=round(tokens / len(kept) * report.train),
        epoch_batches=max(1, round(len(batches) / len(kept) * report.train)),
        held_out_tokens=round(tokens / len(kept) * min(report.held_out, WATCHED_PAIRS)),
        held_out_sources=report.held_out_sources,
        target_length=sum(batch.labels.numel() for batch in batches) / len(kept),
    )
    costs = measure(model, recipe, grouped(batches, recipe.training.accumulation, device), amount)
    settled, steps, _ = budgeted(recipe, costs)
    parameters, shared = model.parameter_counts()
    return Estimate(
        costs=costs,
        steps=steps,
        seconds=costs.expected(steps, settled.training.evaluate_every),
        parameters=parameters,
        shared=shared,
        vocabularies=vocabularies,
        epochs=steps * recipe.training.accumulation / amount.epoch_batches,
    )


def _batches(pairs: Sequence[tuple[list[int], list[int]]], batching: Batching, seed: int) -> list[Batch]:
    """Batches of pairs in memory, put together as those of a prepared corpus are."""
    lengths = np.array([(len(source) + 1, len(target) + 1) for source, target in pairs])
    random = np.random.default_rng(derive_seed(seed, "estimate"))
    order = by_length(lengths[:, 0], lengths[:, 1], random.random(len(pairs)))
    bounds = cut(lengths[order, 0], lengths[order, 1], batching.tokens)
    groups = [order[first:last] for first, last in pairwise(bounds)]
    return [_batch([pairs[number] for number in groups[place]]) for place in random.permutation(len(groups))]


def _batch(pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
    return Batch(
        source=Ragged.from_lists([[*source, EOS] for source, _ in pairs]),
        target=Ragged.from_lists([[BOS, *target] for _, target in pairs]),
        labels=Ragged.from_lists([[*target, EOS] for _, target in pairs]).tokens,
        numbers=tuple(range(len(pairs))),
    )


def _calibrated(run: Run) -> Costs:
    """What updates and evaluations of a run cost here."""
    session = begin(run)
    epoch = session.data.batches(session.recipe.batch, session.recipe.seed, 0)
    updates = grouped(epoch, session.recipe.training.accumulation, session.device)
    return measure(session.model, session.recipe, updates, session.amount())
