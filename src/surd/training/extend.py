"""Going on beyond a run's end: the few settings that may change between two sittings of one training."""

from collections.abc import Sequence

from surd.errors import SurdError
from surd.recipe import explain, override, write
from surd.run import Run

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
        write(after, run.recipe_file, {name: "changed when the training was taken up again" for name in changed})
    return Run(run.folder)
