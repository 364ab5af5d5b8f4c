"""Verifying a training: the way from its older checkpoint to its newer one, gone again, must give the same bits."""

from dataclasses import dataclass

from torch import Tensor

from surd.errors import SurdError
from surd.files import tensor_bytes
from surd.run import Run
from surd.run.lock import held
from surd.training.checkpoint import all_tensors, random_tensors
from surd.training.fingerprint import Fingerprints, combined, hashes
from surd.training.session import begin


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What came of it."""

    older: int
    newer: int
    """The updates of both checkpoints."""
    tensors: int
    """How many tensors the newer one has, random states included."""
    differs: str = ""
    """What differs first: empty where all is equal."""
    notes: tuple[str, ...] = ()
    """What differs between the machine of the training and this one."""

    @property
    def equal(self) -> bool:
        return not self.differs


def verify_run(run: Run) -> Verified:
    """Replays in memory, and compares with the hash of every update and with each tensor of the newer checkpoint.

    Nothing in the run changes.
    """
    with held(run.folder):
        return _replayed(run)


def _replayed(run: Run) -> Verified:
    session = begin(run)
    steps = session.checkpoints.steps()
    if len(steps) < 2:
        raise SurdError(
            f"{run.folder}: to verify a training takes two checkpoints, an older and a newer one; found {len(steps)}. "
            f"Go on with: surd train --resume {run.folder}"
        )
    older, newer = steps[-2:]
    stored = session.checkpoints.tensors(newer)  # before anything is computed: its files may be damaged
    by_step, by_checkpoint = _told(run, older, newer)
    state = session.checkpoints.restore(older, session.model, session.optimizer)
    notes = session.notes(state)
    begun = hashes(all_tensors(session.model, session.optimizer) | random_tensors())
    first = _other_tensor(begun, by_checkpoint.get(older))
    differs = f"update {older:,}: the checkpoint is not what was trained, first in {first}" if first else ""
    parted = 0
    updates = session.updates(state)
    for step in range(older + 1, newer + 1):
        if differs:
            break
        session.step(step, next(updates))
        now = combined(hashes(all_tensors(session.model, session.optimizer)))
        if not parted and now != by_step[step]:
            parted = step
    if not differs:
        found = all_tensors(session.model, session.optimizer) | random_tensors()
        first = first_difference(stored, found)
        if parted:
            where = f"; at update {newer:,} the first tensor that differs is {first}" if first else ""
            differs = f"update {parted:,}: weights and optimiser state have another hash than in the training{where}"
        elif first:
            differs = f"update {newer:,}: the checkpoint is not what was trained, first in {first}"
    return Verified(older=older, newer=newer, tensors=len(stored), differs=differs, notes=notes)


def _told(run: Run, older: int, newer: int) -> tuple[dict[int, str], dict[int, dict[str, str]]]:
    """What the training has told of itself; refused where that lacks an update between the two checkpoints."""
    fingerprints = Fingerprints(run.folder)
    way_out = (
        "so there is nothing to compare these updates with. Restore it from a copy; "
        f"or go on with: surd train --resume {run.folder}, and verify the checkpoints that come"
    )
    if not fingerprints.path.exists():
        raise SurdError(f"{fingerprints.path}: missing, {way_out}")
    by_step, by_checkpoint = fingerprints.read()
    if missing := [step for step in range(older + 1, newer + 1) if step not in by_step]:
        raise SurdError(
            f"{fingerprints.path}: has no hash of {len(missing):,} of the updates {older + 1:,} to {newer:,} "
            f"(first of {missing[0]:,}), {way_out}"
        )
    return by_step, by_checkpoint


def first_difference(expected: dict[str, Tensor], found: dict[str, Tensor]) -> str:
    """The first tensor, by name, that is not the same to the bit; empty if none is."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected or name not in found:
            return name
        one, other = expected[name], found[name]
        if one.dtype != other.dtype or one.shape != other.shape or tensor_bytes(one) != tensor_bytes(other):
            return name
    return ""


def _other_tensor(now: dict[str, str], then: dict[str, str] | None) -> str:
    """The first tensor whose hash is not the one that was noted; empty where all are equal, or none was noted."""
    if then is None:
        return ""
    return next((name for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)), "")
