"""Averages by hand: a new run whose weights are the mean of a run's kept evaluations, or of several runs' models."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surd.errors import SurdError
from surd.files import read_bytes, verify, write_atomic
from surd.models.weights import set_weights
from surd.run import Run, refuse_occupied
from surd.run.unseen import note, unseen_by
from surd.training.average import average
from surd.training.checkpoint import Checkpoints
from surd.training.origin import differences, record


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A run that was made of trained weights."""

    run: Run
    weights_of: str
    """What was averaged, in words."""
    step: int
    """Updates of the longest trained part."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Weights that are averaged, by their file, and what is told of them."""

    file: Path
    sha256: str
    record: Mapping[str, Any]


def averaged(runs: Sequence[Run], out: Path, last: int | None = None, steps: Sequence[int] | None = None) -> Merged:
    """Makes the run `out`, which is ready for use and learns no more, of the mean of some weights. Vaswani et al. 2017.

    Of one run they are those after its kept evaluations: all, the `last` few, or those after `steps` updates. Of
    several runs, which must share task, vocabulary and architecture, they are the models for use.
    """
    refuse_occupied(out)
    if len(runs) == 1:
        parts = _evaluations(runs[0], last, steps)
    elif last is not None or steps is not None:
        raise SurdError("evaluations are chosen from one run (--last, --steps), of several runs their models are taken")
    else:
        parts = _models(runs)
    first, step = runs[0], max(part.record["step"] for part in parts)
    if len(runs) == 1:
        numbers = ", ".join(f"{part.record['step']:,}" for part in parts)
        name = f"average of {len(parts)} checkpoints (updates {numbers})"
    else:
        name = f"average of {len(parts)} runs ({', '.join(part.record['run'] for part in parts)})"
    files = dict.fromkeys(file for run in runs for file in run.about.get("data", []))
    origin = {"how": "average", "runs": [part.record for part in parts]}
    with Run.create(out, first.recipe.task, list(files), origin) as run:
        first.tokenizers.save(run.tokenizer_folder)
        write_atomic(run.recipe_file, read_bytes(first.recipe_file))
        note(run, unseen_by(*runs))
        model = run.build_model()
        set_weights(model, average([part.file for part in parts]), name)
        run.save_model(model, {"step": step, "weights_of": name, "finished": True})
    return Merged(run=Run.open(out), weights_of=name, step=step)


def _models(runs: Sequence[Run]) -> list[Part]:
    """The models for use of several runs that can be averaged."""
    first = runs[0]
    if wrong := [f"{run.folder}: {line}" for run in runs[1:] for line in differences(first, run)]:
        raise SurdError(f"{first.folder} cannot be averaged with runs of another kind: {'; '.join(wrong)}")
    parts = []
    for run in runs:
        file = run.weights()
        checksum = hashlib.sha256(read_bytes(file)).hexdigest()
        parts.append(Part(file=file, sha256=checksum, record=record(run, checksum)))
    if len({part.sha256 for part in parts}) == 1:
        raise SurdError(f"{first.folder}: the other {'runs have' if len(runs) > 2 else 'run has'} the same weights")
    return parts


def _evaluations(run: Run, last: int | None, steps: Sequence[int] | None) -> list[Part]:
    """The weights after chosen evaluations of a run that are still on disk."""
    if last is not None and steps is not None:
        raise SurdError("--last and --steps: each says which evaluations are averaged, give one of the two")
    kept = _kept(run)
    known = ", ".join(f"{step:,}" for step in kept) or "none"
    if missing := [step for step in steps or () if step not in kept]:
        told = ", ".join(f"{step:,}" for step in missing)
        raise SurdError(f"{run.folder}: no evaluation of update {told} is kept; there is: {known}")
    if last is not None and not 2 <= last <= len(kept):
        raise SurdError(
            f"{run.folder}: expected from 2 to {len(kept)} of the kept evaluations (of updates {known}), found {last}"
        )
    chosen = sorted(set(steps)) if steps is not None else [*kept][-last:] if last is not None else [*kept]
    if len(chosen) < 2:
        raise SurdError(f"{run.folder}: an average takes two evaluations or more (kept: {known}), found {len(chosen)}")
    parts = []
    for step in chosen:
        file = Checkpoints(run.checkpoint_folder).weights(step)
        verify(file, kept[step])
        parts.append(Part(file=file, sha256=kept[step], record=record(run, kept[step]) | {"step": step}))
    return parts


def _kept(run: Run) -> dict[int, str]:
    """Updates after which a run was evaluated and whose weights are still on disk, in order, with their checksums."""
    checkpoints = Checkpoints(run.checkpoint_folder)
    found = {}
    for step in checkpoints.steps():
        state = checkpoints.read(step)
        for one in (*state.recent, state.best):
            if one is not None and checkpoints.weights(one.step).exists():
                found[one.step] = one.sha256
    return dict(sorted(found.items()))
