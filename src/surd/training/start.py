"""Before the first update: from what was asked for to a plan, and from a plan to a run's folder that can be trained."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surd.data.corpus import DataSettings
from surd.data.prepare import learn_tokenizers, prepare, survey
from surd.data.prepare_text import learn_text_tokenizer, prepare_text, refuse_short
from surd.data.progress import PROGRESS, Progress, digest_of
from surd.data.survey import Survey
from surd.data.text import HELD_OUT, TextSurvey, survey_text
from surd.data.tokenizer import BPE, Characters, TokenizerPair, Unigram
from surd.data.windows import Material
from surd.device import default_device, default_precision
from surd.errors import SurdError
from surd.files import write_atomic
from surd.optim.schedule import last_update
from surd.part import structure, unstructure
from surd.recipe import VOCABULARY_SIZES, Draft, Recipe, choose_task, derive, derive_text, with_steps, write
from surd.run import Run, built_model, refuse_occupied
from surd.run.folder import START
from surd.run.unseen import in_both, look_for, note, unseen_by
from surd.seed import seed_all
from surd.training.evaluate import Stop, never
from surd.training.events import Event, Preparing
from surd.training.loop import train
from surd.training.origin import Source, drafted_from, kept, strangers
from surd.training.pace import Costs, grouped, measure
from surd.training.sample import pair_sample, text_sample
from surd.training.session import begin, placed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would be trained on which data, and why; nothing is written yet."""

    survey: Survey | TextSurvey
    draft: Draft
    """What was asked for."""
    recipe: Recipe
    reasons: Mapping[str, str]
    source: Source | None = None
    """The run that training goes on from; without one it begins with first weights."""
    notes: tuple[str, ...] = ()
    """What to know of data that another run's vocabulary is to be used on."""

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
    vocabularies: tuple[int, ...]
    epochs: float
    """How often every pair is seen in so many updates."""


def plan(draft: Draft, origin: Run | None = None) -> Plan:
    """Reads the data and settles every setting; whatever is wrong with either is refused here.

    With `origin`, training is to go on from that run: its vocabulary and architecture stand.
    """
    source = None
    if origin is not None:
        draft, source = drafted_from(origin, draft), Source.open(origin)
    draft.check()
    found, recipe, reasons = _derived(draft)
    notes: tuple[str, ...] = ()
    if origin is not None:
        recipe, notes = kept(recipe, origin), strangers(origin, found)
    elif isinstance(found, TextSurvey) and isinstance(recipe.tokenizer.target, Characters):
        refuse_short(found, found.characters)  # of other tokens it is known once they are learnt
    return Plan(survey=found, draft=draft, recipe=recipe, reasons=reasons, source=source, notes=notes)


def _derived(draft: Draft) -> tuple[Survey | TextSurvey, Recipe, dict[str, str]]:
    """What is in the data, and the recipe that follows from it."""
    settings = structure(DataSettings, draft.values.get("data", {}), "data")
    if settings.text is not None:
        if settings.dev_text is None and not draft.given("data.held_out"):
            settings = replace(settings, held_out=HELD_OUT)
        text = survey_text(settings)
        recipe, reasons = derive_text(text, draft)
        return replace(text, settings=recipe.data), recipe, reasons
    found = survey(settings)
    task, _ = choose_task(found, draft)
    found = (found.without_copies() if task.drop_copies else found).final()
    return found, *derive(found, draft)


def train_new(plan: Plan, out: Path, stop: Stop = never) -> Iterator[Event]:
    """Makes the run's folder and trains in it; a failure before the first update leaves no folder."""
    refuse_occupied(out)
    recipe, reasons = plan.recipe, dict(plan.reasons)
    names = [Path(name).name for name in (recipe.data.text, recipe.data.source, recipe.data.target) if name]
    source = plan.source
    record = None if source is None else {"how": "from", "runs": [source.record]}
    with Run.create(out, recipe.task, names, record) as run:
        left = [folder for folder in (run.folder, run.data_folder) if (folder / PROGRESS).is_file()]
        yield Preparing(doing=f"the tokenizers{', with what a start that was killed has left' if left else ''}")
        tokenizers = saved(plan, run)
        recipe = settled(fitted(recipe, tokenizers, reasons), reasons)
        yield Preparing(doing="the ids of all data")
        if isinstance(plan.survey, TextSurvey):
            prepare_text(recipe.data, tokenizers.target, plan.survey, run.data_folder)
        else:
            prepared = prepare(recipe.data, tokenizers, plan.survey, run.data_folder)
            unseen = look_for(prepared, tokenizers, recipe.tokenizer.symbols)
            note(run, unseen if source is None else in_both(unseen, unseen_by(source.run)))
        write(recipe, run.recipe_file, reasons, plan.draft.comments)
        yield Preparing(doing="a short calibration of the time an update takes here")
        costs = _calibrated(run)
        recipe, _, more = budgeted(recipe, costs)
        if more:
            write(recipe, run.recipe_file, reasons | more, plan.draft.comments)
        if source is not None:
            write_atomic(run.folder / START, source.weights)
        for folder in (run.folder, run.data_folder):  # from here on, --resume goes on
            (folder / PROGRESS).unlink(missing_ok=True)
    yield from train(Run(out), stop, costs)


def saved(plan: Plan, run: Run) -> TokenizerPair:
    """The tokenizers in the folder of a run: new ones, unless a kill has left those of the same text there."""
    progress = Progress(run.folder, [unstructure(plan.recipe.tokenizer), plan.fit, digest_of(plan.survey.sample)])
    kinds = plan.recipe.tokenizer
    subwords = isinstance(kinds.target, BPE | Unigram) and isinstance(kinds.source, BPE | Unigram)
    slow = subwords and plan.source is None  # only these are learnt from the sample alone, and take long
    if slow and progress.noted:
        return run.tokenizers
    shutil.rmtree(run.tokenizer_folder, ignore_errors=True)
    tokenizers = learnt(plan)
    tokenizers.save(run.tokenizer_folder)
    if slow:
        progress.note(None)
    return tokenizers


def learnt(plan: Plan) -> TokenizerPair:
    """The tokenizers of a plan, learnt from its data; running text has one, which stands on both sides.

    Where training goes on from a run they are that run's.
    """
    if plan.source is not None:
        return plan.source.run.tokenizers
    if isinstance(plan.survey, TextSurvey):
        settings = plan.recipe.tokenizer
        tokenizer = learn_text_tokenizer(settings.target, plan.survey, plan.fit, settings.symbols)
        return TokenizerPair(tokenizer, tokenizer)
    return learn_tokenizers(plan.recipe.tokenizer, plan.survey, plan.fit)


def fitted(recipe: Recipe, tokenizers: TokenizerPair, reasons: dict[str, str]) -> Recipe:
    """The recipe with the sizes that the vocabularies really have."""
    parts = {"source": recipe.tokenizer.source, "target": recipe.tokenizer.target}
    sides = (("source", tokenizers.source.size), ("target", tokenizers.target.size))
    for side, size in sides if recipe.data.text is None else sides[1:]:
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
    last = last_update(recipe.training.schedule)
    for _ in range(2):  # evaluations that come closer together, as the updates are few, leave time for fewer updates
        steps = costs.updates_within(60 * minutes, shorter.training.evaluate_every)
        steps = steps if last is None else min(steps, last)
        reason = f"{minutes:g} minutes at {1000 * costs.update:.1f} ms an update, measured on this machine"
        shorter, reasons = with_steps(recipe, steps, reason)
    return shorter, steps, reasons


def estimate(plan: Plan) -> Estimate:
    """Times a few updates of the planned model on a sample of the pairs, in memory."""
    recipe = plan.recipe
    device = default_device()
    tokenizers = learnt(plan)
    batches: Sequence[Material]
    if isinstance(plan.survey, TextSurvey):
        batches, amount = text_sample(plan.survey, recipe, tokenizers.target)
    else:
        batches, amount = pair_sample(plan.survey, recipe, tokenizers)
    seed_all(recipe.seed)
    model = placed(built_model(recipe, tokenizers), recipe, device)
    costs = measure(model, recipe, grouped(batches, recipe.training.accumulation, device), amount)
    settled, steps, _ = budgeted(recipe, costs)
    parameters, shared = model.parameter_counts()
    return Estimate(
        costs=costs,
        steps=steps,
        seconds=costs.expected(steps, settled.training.evaluate_every),
        parameters=parameters,
        shared=shared,
        vocabularies=model.vocabularies,
        epochs=steps * recipe.training.accumulation / amount.epoch_batches,
    )


def _calibrated(run: Run) -> Costs:
    """What updates and evaluations of a run cost here."""
    session = begin(run)
    epoch = session.data.batches(session.recipe.batch, session.recipe.seed, 0)
    updates = grouped(epoch, session.recipe.training.accumulation, session.device)
    return measure(session.model, session.recipe, updates, session.amount())
