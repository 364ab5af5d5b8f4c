"""A run: the folder that holds a trained model with all it needs; made whole or not at all, checked when opened.

    RUN/run.json            format, task, origin, checksums of the tokenizers     RUN/recipe.toml   every setting
    RUN/tokenizer/          what turns text into ids and back                     RUN/metrics.jsonl the journal
    RUN/data/               the prepared corpus, for training alone               RUN/checkpoints/  to go on from
    RUN/model.safetensors   the weights for use, described by RUN/model.json
    RUN/check.json          what `surd check` says of the weights that the training began with
    RUN/start.safetensors   the weights it began with, where they are another run's
    RUN/hashes.jsonl        what weights and optimiser were after each update, as one number
    RUN/training.lock       empty, and locked while a training is at work

No file names a place outside the folder, so it can be moved, copied and sent; none is a pickle.
"""

import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from surd.errors import SurdError
from surd.files import read_json, rename, sha256, sync_folder, verify, write_json
from surd.metrics.score import own_version
from surd.run.contents import refuse_foreign_names, refuse_misshapen, refuse_strangers
from surd.run.lock import LOCK, held
from surd.run.place import ABOUT, existing_ancestor, not_a_run, refuse_occupied, take_up

if TYPE_CHECKING:
    import torch

    from surd.data.tokenizer import TokenizerPair
    from surd.models.model import Model
    from surd.recipe import Recipe
    from surd.tasks import Task

FORMAT = 1
WEIGHTS, MODEL, START, CHECK = "model.safetensors", "model.json", "start.safetensors", "check.json"


@dataclass(frozen=True)
class Run:
    """A run's folder; opening one checks it, and what it holds is read when it is asked for."""

    folder: Path

    @property
    def recipe_file(self) -> Path:
        return self.folder / "recipe.toml"

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    @property
    def checkpoint_folder(self) -> Path:
        return self.folder / "checkpoints"

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """The run in that folder; what is no run, newer than this surd, or damaged is a `SurdError`."""
        folder = Path(path)
        if not (folder / ABOUT).is_file():
            raise SurdError(not_a_run(folder))
        refuse_strangers(folder)
        about = _described(folder / ABOUT, "run")
        refuse_foreign_names(folder / ABOUT, about["files"], "tokenizer")
        refuse_misshapen(folder / ABOUT, about)
        for name, checksum in about["files"].items():
            verify(folder / name, checksum)
        return cls(folder)

    @classmethod
    @contextmanager
    def create(
        cls, path: Path | str, task: str, data: Sequence[str], origin: Mapping[str, Any] | None = None
    ) -> Generator["Run", None, None]:
        """A new run, to be filled inside the block: recipe, tokenizers and data.

        It is built in a hidden folder and becomes `path` when the block succeeds; when it fails, or is interrupted,
        nothing is left. What a kill has left of an earlier attempt is gone on with (see `take_up`). `data` are the
        names, without folders, of the files that it learns from; `origin` is what is to be told of the runs whose
        weights it has.
        """
        final = Path(path)
        refuse_occupied(final)
        # A sibling of the final place as far as possible: a rename works within one file system only.
        staging = existing_ancestor(final) / f".{final.name}.{os.getpid()}.partial"
        take_up(staging.parent, final.name, staging)
        try:
            try:
                staging.mkdir(exist_ok=True)
            except OSError as error:
                raise SurdError(f"{final}: cannot be made ({(error.strerror or str(error)).lower()})") from None
            with held(staging):
                run = cls(staging)
                yield run
                created = datetime.now(UTC).isoformat(timespec="seconds")
                about = {"format": FORMAT, "surd": own_version(), "task": task, "created": created, "data": list(data)}
                about |= {"origin": dict(origin)} if origin else {}
                write_json(staging / ABOUT, about | {"files": run._tokenizer_checksums()})
                refuse_occupied(final)
                final.parent.mkdir(parents=True, exist_ok=True)
            (staging / LOCK).unlink()
            rename(staging, final)
            sync_folder(final.parent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What run.json says: when and from which files it was made, and of which other runs."""
        return _described(self.folder / ABOUT, "run")

    @cached_property
    def recipe(self) -> "Recipe":
        from surd.recipe import read

        return read(self.recipe_file)

    @cached_property
    def tokenizers(self) -> "TokenizerPair":
        from surd.data.tokenizer import TokenizerPair

        return TokenizerPair.load(self.tokenizer_folder)

    @cached_property
    def task(self) -> "Task":
        from surd.tasks import named

        return named(self.recipe.task)

    def refuse_unless(self, use: str) -> None:
        """Refuses a run that was trained for something else than the command `use`."""
        if self.task.use != use:
            raise SurdError(
                f"{self.folder}: was trained for the task {self.task.name}, so what uses it is: "
                f"surd {self.task.use} {self.folder}"
            )

    def build_model(self) -> "Model":
        """The recipe's model with first weights, in the size of the run's vocabularies."""
        return built_model(self.recipe, self.tokenizers)

    def first_model(self) -> "Model":
        """The model that a training begins with: first weights, or those of the run that it goes on from."""
        from surd.models.weights import load_weights

        model = self.build_model()
        if not (self.folder / ABOUT).exists():  # still being made, and looked at for its speed alone
            return model
        match self.about.get("origin"):
            case None:
                pass
            case {"how": "from", "runs": [{"weights": str(checksum)}]}:
                verify(self.folder / START, checksum)
                load_weights(model, self.folder / START)
            case {"how": "average"}:
                raise SurdError(
                    f"{self.folder}: is an average of trained weights, which no training can go on with to the bit; "
                    f"train from it: surd train FILES --from {self.folder} --out NEW"
                )
            case _:
                raise SurdError(f'{self.folder / ABOUT}: damaged, "origin" is not what this surd writes')
        return model

    def load_model(
        self, device: "torch.device | None" = None, precision: Literal["auto", "bf16", "fp32"] = "auto"
    ) -> "Model":
        """The trained model, ready for use: without dropout, on the best device, in the format that is fast there.

        `precision` is the format of the activations; the weights stay fp32.
        """
        import torch

        from surd.device import default_device, default_precision
        from surd.models.weights import load_weights

        weights = self.weights()
        model = self.build_model()
        load_weights(model, weights)
        device = device or default_device()
        chosen = default_precision(device) if precision == "auto" else precision
        model.compute_dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[chosen]
        return model.to(device).eval()

    def note(self) -> str:
        """What to know before using the model: empty when its training has finished."""
        about = _described(self.folder / MODEL, "model")
        if about.get("finished", True):
            return ""
        return (
            f"{self.folder}: its training has not finished, this is the best model up to update {about.get('step')}; "
            f"go on with: surd train --resume {self.folder}"
        )

    def weights(self) -> Path:
        """The checked file of the weights for use; refused while training has not come to a first evaluation."""
        from surd.models.architecture import Architecture
        from surd.part import structure

        path, description = self.folder / WEIGHTS, self.folder / MODEL
        if not description.exists():
            raise SurdError(
                f"{self.folder}: its training has hardly begun, so there is no model to use yet. "
                f"Go on with: surd train --resume {self.folder}"
            )
        about = _described(description, "model")
        # Read, not compared as it stands: a setting that this version knows besides had its default in that training.
        if structure(Architecture, about.get("architecture", {}), f"{description}: architecture") != self.recipe.model:
            raise SurdError(f"{self.recipe_file}: [model] is not what was trained; put back what {description} says")
        while sha256(path) not in about["weights"]:
            before, about = about, _described(description, "model")
            if about != before:  # a training that goes on has just put a better model there
                continue
            raise SurdError(f"{path}: damaged, its content matches no checksum in {description}. Restore it.")
        return path

    def model_step(self) -> int | None:
        """The update whose weights are the model for use; none while there is no model."""
        description = self.folder / MODEL
        return _described(description, "model").get("step") if description.exists() else None

    def save_model(self, model: "Model", about: Mapping[str, Any]) -> None:
        """Makes `model` the one for use; `about` (step, scores, …) is kept beside it, in model.json."""
        from surd.models.weights import save_weights
        from surd.part import unstructure

        staged = self.folder / f".{WEIGHTS}.partial"
        try:
            save_weights(model, staged)
            checksum = sha256(staged)
            record = {"format": FORMAT, "architecture": unstructure(self.recipe.model), **about}
            old = _described(self.folder / MODEL, "model")["weights"] if (self.folder / MODEL).exists() else []
            # A stop between two renames must leave a model that opens: for a moment both checksums are right.
            write_json(self.folder / MODEL, record | {"weights": [checksum, *old]})
            rename(staged, self.folder / WEIGHTS)
            sync_folder(self.folder)
            write_json(self.folder / MODEL, record | {"weights": [checksum]})
        finally:
            staged.unlink(missing_ok=True)

    def _tokenizer_checksums(self) -> dict[str, str]:
        files = sorted(path for path in self.tokenizer_folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): sha256(path) for path in files}


def built_model(recipe: "Recipe", tokenizers: "TokenizerPair") -> "Model":
    """A recipe's model with first weights, for what its tokenizers know: with an encoder, or for running text.

    One that no memory holds is refused before any of it is made.
    """
    from surd.models.language import Language
    from surd.models.seq2seq import Seq2Seq
    from surd.models.size import refuse_too_large

    model = recipe.model
    layers = model.decoder_layers + (model.encoder_layers if recipe.data.text is None else 0)
    refuse_too_large(model, tokenizers.target.size, layers)
    if recipe.data.text is not None:
        return Language(recipe.model, tokenizers.target.size)
    return Seq2Seq(recipe.model, tokenizers.source.size, tokenizers.target.size)


def _described(path: Path, what: str) -> dict[str, Any]:
    """A description with a format number: newer formats and other content are refused."""
    about = read_json(path)
    version = about.get("format") if isinstance(about, dict) else None
    if not isinstance(version, int):
        raise SurdError(f"{path}: damaged, not the description of a {what}")
    if version > FORMAT:
        raise SurdError(
            f"{path}: written by a newer surd ({what} format {version}, this one reads up to {FORMAT}). Update surd."
        )
    expected = {"run": ("files", dict), "model": ("weights", list)}[what]
    if not isinstance(about.get(expected[0]), expected[1]):
        raise SurdError(f'{path}: damaged, "{expected[0]}" is missing')
    return about
