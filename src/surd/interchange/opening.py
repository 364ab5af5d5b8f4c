"""Opens the subject of a check by its path or name; what is none is refused with what was found, and the nearest."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from surd.audit.subject import Subject
from surd.errors import SurdError, nearest

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5", ".hdf5")
"""Endings of weights whose reading may run code, or that belong to other frameworks."""
KINDS = "a run of surd, a Hugging Face folder, a .keras or .safetensors file, or package.module:factory"


def opened(
    model: Path | str, inputs: Any = None, loss: Any = None, *, trained: bool | None = None, static: bool = False
) -> Subject:
    """A run, a folder, a file, or what a factory of the user's makes."""
    if not str(model):
        raise SurdError(f"check: the name of the model is empty; expected {KINDS}")
    path = Path(model)
    if isinstance(model, str) and FACTORY.fullmatch(model) and not exists(path):
        from surd.interchange.factory import made

        return made(model, inputs, loss, trained)
    if not exists(path):
        raise SurdError(_missing(path, str(model)))
    if path.is_dir():
        return _of_folder(path, inputs, loss, trained, static)
    return _of_file(path, inputs, loss, trained)


def exists(path: Path) -> bool:
    """Whether something is there; what cannot be looked at is refused with the reason."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # links in a circle, a name too long, a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise SurdError(f"{path}: cannot be opened ({reason.lower()})") from None
    return True


def _of_folder(path: Path, inputs: Any, loss: Any, trained: bool | None, static: bool) -> Subject:
    if exists(path / "run.json"):
        return _of_run(path, inputs, loss, trained)
    if exists(path / "config.json"):
        from surd.interchange.huggingface import of_folder

        return of_folder(path, inputs, loss, trained, static)
    names = _names(path)
    if "adapter_config.json" in names:
        raise SurdError(
            f"{path}: holds an adapter, not a model; merge it into its model first (merge_and_unload of peft) and save "
            "that"
        )
    files = [name for name in names if name.endswith(".safetensors")]
    hint = f" Its weights alone can be read: surd check {path / files[0]}" if files else ""
    below = [name for name in names if (path / name / "config.json").is_file() or (path / name / "run.json").is_file()]
    hint = hint or (f" There is a model in {path / below[0]}" if below else "")
    raise SurdError(f"{path}: a folder without config.json or run.json, so no model (it holds {listed(names)}).{hint}")


def _of_run(path: Path, inputs: Any, loss: Any, trained: bool | None) -> Subject:
    """The model for use; that of a run whose training has hardly begun is the one it began with."""
    from surd.interchange.subject import of_live
    from surd.run.folder import MODEL, Run

    run = Run.open(path)
    begun = (path / MODEL).exists()
    model = run.load_model(precision="fp32") if begun else run.first_model()
    return of_live(model, inputs, loss, trained if trained is not None or begun else False, str(path))


def _of_file(path: Path, inputs: Any, loss: Any, trained: bool | None) -> Subject:
    ending = path.suffix.lower()
    if ending == ".keras":
        from surd.interchange.keras import of_file

        return of_file(path, inputs, loss, trained)
    if ending == ".safetensors":
        from surd.audit.file_weights import FileWeights

        return Subject(name=str(path), weights=FileWeights(path), trained=trained, notes=(ONLY_WEIGHTS,))
    if path.name in ("config.json", "run.json") or path.name.endswith(".safetensors.index.json"):
        raise SurdError(f"{path}: one file of a model; name its folder: surd check {path.parent}")
    if ending == ".py":
        raise SurdError(f"{path}: code; name the function that makes the model: surd check {path.stem}:FUNCTION")
    if ending in PICKLES:
        raise SurdError(pickled(path, path.name))
    raise SurdError(f"{path}: not a model that check can open; expected {KINDS}")


ONLY_WEIGHTS = "a file of weights without a configuration: nothing was run, and nothing is known to be declared"


def pickled(where: Path, name: str) -> str:
    """Why such weights are not loaded, and how to convert them."""
    if name.endswith((".h5", ".hdf5", ".msgpack")):
        return f"{where}: {name} is not read; save the model as .keras, or as .safetensors"
    return (
        f"{where}: {name} is a pickle, which can run code when it is read, so check does not load it. Where you trust "
        "it, convert it once: in Python, model.save_pretrained(FOLDER) writes .safetensors; or give your own loader as "
        "package.module:factory"
    )


def _missing(path: Path, typed: str) -> str:
    """Says of a name that is none what was most likely meant."""
    told = f"{typed}: there is no such file or folder."
    if code := re.fullmatch(r"(?:\./)?([\w./-]*?)(?:\.py)?:([A-Za-z_][\w.]*)", typed):
        meant = f"{code[1].replace('/', '.')}:{code[2]}"
        if FACTORY.fullmatch(meant):
            return f"{told} A function that makes a model is named by its module: did you mean {meant}?"
    parent = path.parent
    beside = _names(parent) if parent.is_dir() else []
    if guess := nearest(path.name, beside):
        return f"{told} Did you mean {parent / guess}?"
    if re.fullmatch(r"https?://.*|[\w.-]+/[\w.-]+", typed) is not None:
        return f"{told} Nothing is fetched from a hub: download it first, and name its folder."
    return f"{told} Expected {KINDS}."


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:10_000]
    except OSError:
        return []


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names in a row, not all of very many."""
    names = list(names)
    if not names:
        return "nothing"
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
