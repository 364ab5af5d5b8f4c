"""`surd train`: from pairs of text, or from running text, to a trained run."""

import sys
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from surd.commands.progress import Narrator, duration, resume_line, score_lines
from surd.errors import Faults, SurdError, unknown

if TYPE_CHECKING:
    from surd.recipe import Draft
    from surd.training.evaluate import Stop
    from surd.training.events import Event
    from surd.training.start import Estimate, Plan

INTERRUPTED = 130
GIVEN = "given on the command line"


def train(
    *words: Annotated[str, Parameter(name="SOURCE [TARGET] [a.b=value ...]", allow_leading_hyphen=True)],
    out: Path | None = None,
    text: str | None = None,
    dev: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    task: str | None = None,
    columns: str | None = None,
    recipe: str | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    plan: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    origin: Annotated[Path | None, Parameter(name="--from")] = None,
    resume: Path | None = None,
    verify: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Trains on pairs of text (two files, one TSV or JSON lines) or, with --text, a language model on running text.

    Parameters
    ----------
    words
        The file of sources and the file of targets, or one file of pairs, or a recipe (NAME.toml) that names its data;
        "-" is standard input. Then settings of the recipe, such as model.dropout=0.2.
    out
        The folder to make for the run.
    text
        A file of running text in place of pairs: the model learns to go on with it.
    dev
        Held-out text, in one file or two like the training text; without it a part of the training text is held out.
    task
        What the data are (translation, pronunciation, transduction, language), where the guess from them is wrong.
    columns
        Which columns of a TSV to read: "1+2,3" joins columns 1 and 2 as the source; column 3 is the target.
    recipe
        A recipe file, or the name of one that comes with surd; the data decide what it leaves open.
    minutes
        Time to train, in place of a number of updates; a short calibration turns it into updates.
    seed
        Start of all random choices.
    plan
        Print data report, recipe and expected time; write nothing.
    origin
        Begin with the weights of this run: its task, vocabulary and architecture stay, its schedule starts anew.
    resume
        Go on with the training in this folder; with training.steps=N or training.patience=N also beyond its end.
    verify
        With --resume: go from the older checkpoint to the newer one again, compare every bit, and change nothing.
    """
    paths, settings = sorted_words([*words])
    held_out, more = sorted_words(dev or [])
    settings += more
    if resume is not None:
        given = {"files": paths, "--out": out, "--text": text, "--dev": held_out, "--task": task, "--columns": columns}
        given |= {"--recipe": recipe, "--minutes": minutes, "--seed": seed, "--plan": plan, "--from": origin}
        if wrong := [name for name, value in given.items() if value not in (None, False, [])]:
            raise SurdError(f"--resume goes on with a run as it was begun: it does not go with {', '.join(wrong)}")
        return verified(resume, settings) if verify else go_on(resume, settings)
    if verify:
        raise SurdError("--verify goes with --resume RUN: it replays a part of a training that was begun before")
    draft = drafted(paths, text, held_out, recipe, settings, task=task, columns=columns, minutes=minutes, seed=seed)
    if out is None and not plan:
        raise SurdError("--out is missing: name the folder to make for the run (or use --plan, which writes nothing)")
    return print_plan(draft, origin) if plan or out is None else begin(draft, out, origin)


def sorted_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Files, and settings of the form `a.b=value`; an option that does not exist lands here too, and is refused."""
    from surd.recipe.draft import WORD

    for word in words:
        if word.startswith("-") and word != "-":  # the lone hyphen is standard input
            raise SurdError(unknown("option", word, options()))
    settings = [word for word in words if WORD.fullmatch(word) and not Path(word).exists()]
    return [word for word in words if word not in settings], settings


def options() -> list[str]:
    """The options of this command."""
    keywords = [one for one in signature(train).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return [f"--{'from' if one.name == 'origin' else one.name}" for one in keywords]  # `from` is a word of Python


def drafted(
    paths: list[str],
    text: str | None,
    held_out: list[str],
    recipe: str | None,
    settings: list[str],
    *,
    task: str | None,
    columns: str | None,
    minutes: float | None,
    seed: int | None,
) -> "Draft":
    """Everything that was asked for, before the data are seen."""
    from surd.recipe import Draft, suggested, with_files

    faults = []
    if len(paths) == 1 and paths[0].endswith(".toml"):
        if recipe is not None:
            faults.append(f"two recipes: {paths[0]} and --recipe {recipe}")
        recipe, paths = paths[0], []
    if text is not None and paths:
        faults.append(f"--text names running text, for a language model: it does not go with {', '.join(paths)}")
    if len(paths) > 2:
        faults.append(f"expected one file of pairs, or a source and a target, found {len(paths)}: {', '.join(paths)}")
    if len(held_out) > 2:
        faults.append(f"--dev: expected one or two files, found {len(held_out)}: {', '.join(held_out)}")
    if faults:
        raise Faults(faults)
    draft = suggested(recipe) if recipe is not None else Draft()
    draft = with_files(draft, text, paths, held_out, GIVEN)
    values = {"task": task, "data.columns": columns, "training.minutes": minutes, "seed": seed}
    draft = draft.with_values(values, GIVEN).with_words(settings)
    if not (draft.given("data.source") or draft.given("data.text")):
        after = " (all files between --dev and the next option are held-out text)" if held_out else ""
        raise SurdError(
            f"there is nothing to train on: name a source and a target file, one file of pairs, or --text{after}"
        )
    return draft


def begin(draft: "Draft", out: Path, origin: Path | None) -> int:
    """A new run."""
    from surd.run import Run, refuse_occupied
    from surd.training.start import plan, train_new

    refuse_occupied(out)
    planned = plan(draft, None if origin is None else Run.open(origin))
    for line in (*planned.survey.report.lines(), *recipe_lines(planned, defaults=False), *planned.notes):
        print(line, file=sys.stderr)
    return follow(lambda stop: train_new(planned, out, stop), out)


def go_on(folder: Path, settings: list[str]) -> int:
    """A run that was begun before."""
    from surd.run import Run
    from surd.training.extend import extended
    from surd.training.loop import train

    run = extended(Run.open(folder), settings)
    return follow(lambda stop: train(run, stop), folder)


def verified(folder: Path, settings: list[str]) -> int:
    """A part of a training made again, and compared."""
    from surd.run import Run
    from surd.training.verify import verify_run

    if settings:
        raise SurdError(f"--verify replays a training as it was: it does not go with {', '.join(settings)}")
    found = verify_run(Run.open(folder))
    for note in found.notes:
        print(note, file=sys.stderr)
    if found.equal:
        print(
            f"{folder}: equal. Updates {found.older + 1:,} to {found.newer:,}, made again, have every hash of the "
            f"training, and the {found.tensors:,} tensors of its newer checkpoint to the bit."
        )
        return 0
    print(f"{folder}: differs. {found.differs}.")
    return 1


def follow(training: "Callable[[Stop], Iterable[Event]]", run: Path) -> int:
    """Tells a training to its end; the exit status says whether it got there."""
    from surd.run.place import ABOUT
    from surd.training.events import Finished, Interrupted
    from surd.training.interrupt import stop_on_signal

    status, last = 0, None
    with stop_on_signal() as stop:
        try:
            with Narrator() as narrator:
                for event in training(stop):
                    narrator.tell(event)
                    last = event
        except KeyboardInterrupt:
            if (run / ABOUT).exists():
                print(f"stopped; go on with: {resume_line(run)}", file=sys.stderr)
            raise
    if isinstance(last, Interrupted):
        status = INTERRUPTED
    if isinstance(last, Finished):
        for line in score_lines(last.scores):
            print(line)
        print(f"use it: {use_line(run)}", file=sys.stderr)
    return status


def use_line(run: Path) -> str:
    """The command that uses a trained run."""
    from surd.run import Run

    use = Run.open(run).task.use
    return f"surd {use} {run} --prompt TEXT" if use == "generate" else f"surd {use} {run} < INPUT > OUTPUT"


def print_plan(draft: "Draft", origin: Path | None) -> int:
    """What would be trained, and for how long."""
    from surd.run import Run
    from surd.training.start import estimate, plan

    planned = plan(draft, None if origin is None else Run.open(origin))
    for line in (*planned.survey.report.lines(), *recipe_lines(planned, defaults=True), *planned.notes):
        print(line, flush=True)
    for line in estimate_lines(estimate(planned)):
        print(line)
    return 0


def recipe_lines(plan: "Plan", defaults: bool) -> Iterable[str]:
    """Every setting with its value and the reason for it; those at their default are left out unless asked for."""
    from surd.recipe import explain

    rows = [row for row in explain(plan.recipe, plan.reasons) if row.reason or defaults]
    names = max(len(row.setting) for row in rows)
    values = max(len(row.value) for row in rows if not row.setting.startswith("data."))
    yield "recipe:" if defaults else "recipe (settings not listed have their default):"
    for row in rows:
        yield f"  {row.setting.ljust(names)}  {row.value.ljust(values)}  {row.reason or 'default'}"


def estimate_lines(estimate: "Estimate") -> Iterable[str]:
    """The expected time, and how it was found."""
    shared = f", {estimate.shared:,} more are saved by tying" if estimate.shared else ""
    sizes = " and ".join(f"{size:,}" for size in estimate.vocabularies)
    a = "vocabularies" if len(estimate.vocabularies) > 1 else "a vocabulary"
    yield f"{estimate.parameters:,} parameters{shared}; {a} of {sizes}"
    costs, each = estimate.costs, 1000 * estimate.costs.update
    yield f"at most {estimate.steps:,} updates ({estimate.epochs:.1f} epochs), about {duration(estimate.seconds)} here"
    yield (
        f"(timed on a sample of the data: {each:.0f} ms an update, mean of {costs.timed}; reckoned from it: "
        f"{costs.evaluation:.1f} s an evaluation, {costs.final:.0f} s for the final scores)"
    )
