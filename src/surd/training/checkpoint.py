"""Checkpoints: all that a training needs to go on as if it had never stopped, each in a folder written as a whole."""

import os
import shutil
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from surd.errors import SurdError
from surd.files import load_tensors, read_json, rename, save_tensors, sha256, sync_folder, verify, write_json
from surd.measure.watching.vitals import Memory
from surd.models.model import Model
from surd.models.weights import load_weights, save_weights, weights_of
from surd.part import structure, unstructure

FORMAT = 1
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
RANDOM = "random."
"""Names of the random states, kept beside the optimiser's tensors."""
LATER: dict[str, Any] = {"watch": None}
"""Fields that came to the format later, with what they are where it lacks them."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One look at the held-out text; its weights are on disk while averaging may still want them."""

    step: int
    score: float
    """By the task's selecting score, greedy."""
    nll: float
    sha256: str = ""
    """Of the weights file."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a training stands, apart from its tensors."""

    step: int = 0
    """Updates done; the schedule is a function of it."""
    epoch: int = 0
    batches: int = 0
    """Batches consumed in this epoch."""
    tokens: int = 0
    """Real source and target tokens consumed in all."""
    seconds: float = 0.0
    """Time trained, over all sittings."""
    start: float | None = None
    """Held-out nll before the first step."""
    verdict: bool | None = None
    """The last sentence on whether it learns; none before the first."""
    evaluated: int = 0
    """The update whose weights were last measured on held-out text."""
    waited: int = 0
    """Evaluations since the best one: what patience counts."""
    best: Evaluation | None = None
    recent: tuple[Evaluation, ...] = ()
    """The evaluations whose weights averaging takes, oldest first."""
    window: tuple[float, float, int] = (0.0, 0.0, 0)
    """Loss, nll and target tokens since the journal's last line."""
    journal: int = 0
    """Lines of the journal."""
    setting: dict[str, str] = field(default_factory=dict)
    """Versions, device and threads: where they differ, going on is right but not equal to the bit."""
    watch: Memory | None = None
    """Alarms that were told, and what they are measured against; none where nothing is watched."""

    def needed(self) -> set[int]:
        """Steps whose weights the end of the training asks for."""
        return {one.step for one in (*self.recent, self.best) if one is not None}


class Checkpoints:
    """The folder of a run that holds its checkpoints: step-000123/ in full, and averaging/ with bare weights."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = max(1, keep)

    def steps(self) -> list[int]:
        """Steps of the full checkpoints, in order."""
        names = [path.name.removeprefix("step-") for path in self.folder.glob("step-*") if path.is_dir()]
        return sorted(int(name) for name in names if name.isdigit())

    def path(self, step: int) -> Path:
        """The folder of a full checkpoint."""
        return self.folder / f"step-{step:06d}"

    def weights(self, step: int) -> Path:
        """The file of the weights after `step`, whether its checkpoint is still full or not."""
        full = self.path(step) / WEIGHTS
        return full if full.exists() else self.folder / "averaging" / f"step-{step:06d}.safetensors"

    def save(self, state: State, model: Model, optimizer: Optimizer) -> State:
        """Writes the checkpoint of `state.step`, drops those no longer needed, and returns the state as written."""
        final = self.path(state.step)
        temporary = self.folder / f".{final.name}.{os.getpid()}.partial"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            save_weights(model, temporary / WEIGHTS, {"step": str(state.step)})
            save_tensors(temporary / OPTIMIZER, optimizer_tensors(model, optimizer) | random_tensors(), {})
            sums = {name: sha256(temporary / name) for name in (WEIGHTS, OPTIMIZER)}
            written = _with_checksum(state, sums[WEIGHTS])
            write_json(temporary / STATE, {"format": FORMAT, **unstructure(written), "files": sums})
            if final.exists():  # a folder cannot be replaced in one move; the checkpoint before it stays meanwhile
                self._drop(final)
            rename(temporary, final)
            sync_folder(self.folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self.prune()
        return written

    def prune(self) -> None:
        """Keeps the newest checkpoints in full and, of the others, the weights that those still name."""
        steps = self.steps()
        newest = steps[-self.keep :]
        needed = set().union(*(self.read(step).needed() for step in newest))
        averaging = self.folder / "averaging"
        for step in steps[: -self.keep]:
            if step in needed and (self.path(step) / WEIGHTS).exists():  # a kill right here may have moved them before
                averaging.mkdir(exist_ok=True)
                rename(self.path(step) / WEIGHTS, averaging / f"step-{step:06d}.safetensors")
            self._drop(self.path(step))
        for path in averaging.glob("step-*.safetensors"):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) not in needed:  # other names are not ours
                path.unlink()
        for leftover in self.folder.glob(".step-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _drop(self, checkpoint: Path) -> None:
        """Takes a checkpoint out of the list in one move: what a kill leaves of it is no longer one."""
        aside = self.folder / f".{checkpoint.name}.old.partial"
        shutil.rmtree(aside, ignore_errors=True)
        rename(checkpoint, aside)
        shutil.rmtree(aside, ignore_errors=True)

    def read(self, step: int) -> State:
        """The state of a checkpoint, without its tensors; a newer format or a damaged file is refused."""
        return self._read(step)[0]

    def _read(self, step: int) -> tuple[State, dict[str, str]]:
        path = self.path(step) / STATE
        found = read_json(path)
        version = found.get("format") if isinstance(found, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise SurdError(
                f"{path}: written by a newer surd (checkpoint format {version}, this one reads up to {FORMAT}). "
                "Update surd to go on with it."
            )
        try:
            found = {**LATER, **found}
            values: dict[str, Any] = {one.name: found[one.name] for one in fields(State)}
            values["best"] = values["best"] and Evaluation(**values["best"])
            values["recent"] = tuple(Evaluation(**one) for one in values["recent"])
            values["window"] = tuple(values["window"])
            values["watch"] = values["watch"] and structure(Memory, values["watch"], "watch")
            return State(**values), dict(found["files"])
        except (KeyError, TypeError, ValueError, SurdError) as error:
            raise SurdError(f"{path}: damaged, not the state of a checkpoint ({error})") from None

    def tensors(self, step: int) -> dict[str, Tensor]:
        """All tensors of a checkpoint, after checking its files: weights, optimiser and random states."""
        folder, (_, sums) = self.path(step), self._read(step)
        for name in (WEIGHTS, OPTIMIZER):
            verify(folder / name, sums[name])
        return load_tensors(folder / WEIGHTS) | load_tensors(folder / OPTIMIZER)

    def restore(self, step: int, model: Model, optimizer: Optimizer) -> State:
        """Loads a checkpoint into model, optimiser and the global random streams, after checking every file."""
        folder = self.path(step)
        try:
            state, sums = self._read(step)
            for name in (WEIGHTS, OPTIMIZER):
                verify(folder / name, sums[name])
            load_weights(model, folder / WEIGHTS)
            tensors = load_tensors(folder / OPTIMIZER)
        except SurdError as error:
            older = [one for one in self.steps() if one < step]
            way = f" Remove the folder {folder} to go on from step {older[-1]}." if older else ""
            raise SurdError(f"{error}{way}") from None
        load_optimizer(model, optimizer, {k: v for k, v in tensors.items() if not k.startswith(RANDOM)})
        load_random({k: v for k, v in tensors.items() if k.startswith(RANDOM)})
        return state


def _with_checksum(state: State, checksum: str) -> State:
    """The state with the weights' checksum beside the evaluations of this very step."""

    def mark(one: Evaluation | None) -> Evaluation | None:
        return replace(one, sha256=checksum) if one is not None and one.step == state.step else one

    return replace(state, best=mark(state.best), recent=tuple(one for one in map(mark, state.recent) if one))


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors as `weight name/what`; everything else in it follows from the recipe."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    return {f"{names[id(w)]}/{key}": value for w, held in optimizer.state.items() for key, value in held.items()}


def all_tensors(model: Model, optimizer: Optimizer) -> dict[str, Tensor]:
    """Weights and optimiser state by name: what an update changes."""
    return weights_of(model) | optimizer_tensors(model, optimizer)


def load_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`: moments go to their weight's device."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for name, tensor in tensors.items():
        weight, key = name.rsplit("/", 1)
        optimizer.state[parameters[weight]][key] = tensor.to(parameters[weight].device)


def random_tensors() -> dict[str, Tensor]:
    """The global random streams that dropout draws from."""
    streams = {f"{RANDOM}cpu": torch.get_rng_state()}
    return streams | ({f"{RANDOM}cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def load_random(streams: dict[str, Tensor]) -> None:
    """The inverse of `random_tensors`, as far as this machine has the devices."""
    torch.set_rng_state(streams[f"{RANDOM}cpu"])
    if f"{RANDOM}cuda" in streams and torch.cuda.is_available():
        torch.cuda.set_rng_state(streams[f"{RANDOM}cuda"])
