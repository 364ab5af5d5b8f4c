"""Going on beyond a run's end: the few settings that may change between two sittings of one training."""

from collections.abc import Sequence
from dataclasses import replace

from surd.errors import SurdError
from surd.optim.schedule import Cosine
from surd.recipe import Recipe, explain, override, write
from surd.run import Run
from surd.run.lock import is_held

MOVABLE = ("training.steps", "training.patience", "training.keep")
"""Settings that say when training ends or what stays on disk, and leave every update as it would have been."""


def extended(run: Run, words: Sequence[str]) -> Run:
    """The run with settings changed by words of the form `a.b=value`, also in its recipe file."""
    if not words:
        return run
    before, after = run.recipe, override(run.recipe, words)
    old, new = ({row.setting: row.value for row in explain(recipe, {})} for recipe in (before, after))
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if fixed := sorted(changed - set(MOVABLE)):
        raise SurdError(
            f"--resume goes on with a training as it was begun and cannot change {', '.join(fixed)}; "
            f"it can change {', '.join(MOVABLE)}"
        )
    if changed:
        if is_held(run.folder):  # the training at work would not hear of it
            raise SurdError(f"{run.folder}: another process is training in this folder; stop it first.")
        after = _with_schedule_of(before, after)
        write(after, run.recipe_file, {name: "changed when the training was taken up again" for name in changed})
    return Run(run.folder)


def _with_schedule_of(before: Recipe, after: Recipe) -> Recipe:
    """`after`, its rates still falling to where they would have fallen before: a cosine ends where it was to end."""
    schedule, end, steps = before.training.schedule, before.training.steps, after.training.steps
    if not isinstance(schedule, Cosine) or end == steps:
        return after
    end = schedule.steps or end
    if schedule.floor == 0 and end is not None and steps is not None and steps > end:
        raise SurdError(
            f"training.steps: the cosine of this training falls to a rate of 0 at update {end:,}, after which nothing "
            "would change; train anew with more steps, or with training.schedule.floor above 0"
        )
    return replace(after, training=replace(after.training, schedule=replace(schedule, steps=end)))
