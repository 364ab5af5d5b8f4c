"""Where runs lie: places that are free for a new one, what was found instead of one, what a kill has left of one."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from surd.data.progress import PROGRESS
from surd.errors import SurdError, nearest
from surd.files import rename
from surd.run.lock import is_held

ABOUT = "run.json"
"""The file that makes a folder a run."""
KEPT = ("tokenizer", "data", PROGRESS)
"""What a preparation that was killed goes on with."""


def refuse_occupied(path: Path) -> None:
    """Refuses an output folder that holds anything; a missing or an empty one is free."""
    if not path.exists():
        return
    if not path.is_dir():
        raise SurdError(f"{path}: is a file; name a new folder for the run")
    if (path / ABOUT).exists():
        raise SurdError(
            f"{path}: holds another run. Go on with it by: surd train --resume {path}; or name a new folder."
        )
    if names := sorted(item.name for item in path.iterdir()):
        raise SurdError(f"{path}: is not empty (it holds {_listed(names)}); name a new folder for the run")


def take_up(folder: Path, name: str, staging: Path) -> None:
    """Moves to `staging` what a kill has left of a run that was to be made under this name, and removes what is older.

    Only a preparation that has noted its progress is moved, and of it only what it made of the data. Nobody holds the
    lock of what a kill has left.
    """
    taken = False
    for path in sorted(_unfinished(folder, name), key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(SurdError):  # somebody else's
            if is_held(path):
                continue
            if taken or not any((part / PROGRESS).is_file() for part in (path, path / "data")):
                shutil.rmtree(path, ignore_errors=True)
                continue
            with suppress(OSError):  # another process was faster
                rename(path, staging)
                taken = True
    if taken:
        _tidy(staging)


def _tidy(staging: Path) -> None:
    """Leaves nothing of an unfinished run but what counts, whole."""
    for item in staging.iterdir():
        if item.name not in KEPT:
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    for half in staging.rglob("*.partial"):
        half.unlink()
    if not (staging / "data" / PROGRESS).is_file():
        shutil.rmtree(staging / "data", ignore_errors=True)


def _unfinished(folder: Path, name: str) -> Iterator[Path]:
    """Folders in which a run was to be made under this name."""
    for path in folder.iterdir():
        number = path.name.removeprefix(f".{name}.").removesuffix(".partial")
        if path.name == f".{name}.{number}.partial" and number.isdigit() and not path.is_symlink() and path.is_dir():
            yield path


def runs_in(folder: Path) -> list[Path]:
    """The runs that lie directly in a folder, by name."""
    try:
        return sorted(item for item in folder.iterdir() if (item / ABOUT).is_file())
    except OSError:
        return []


def not_a_run(path: Path) -> str:
    """What was found instead of a run, and the run that was likely meant."""
    for parent in path.absolute().parents:
        if (parent / ABOUT).is_file():
            return f"{path}: not a run itself, but inside one: {parent}"
    if inside := runs_in(path):
        return f"{path}: not a run, but it holds {_listed([str(run) for run in inside])}"
    if not path.exists():
        found = "no such folder"
    elif not path.is_dir():
        found = f"a file of {path.stat().st_size:,} bytes, not the folder of a run"
    else:
        names = sorted(item.name for item in path.iterdir())
        found = f"a folder without {ABOUT}, so not a run (it holds {_listed(names) if names else 'nothing'})"
    beside = {run.name: run for run in runs_in(path.parent)}
    guess = nearest(path.name, beside)
    if guess:
        return f"{path}: {found}. Did you mean {beside[guess]}?"
    return f"{path}: {found}. " + (f"Runs beside it: {_listed(list(beside))}." if beside else "No run is beside it.")


def existing_ancestor(path: Path) -> Path:
    """The nearest folder above `path` that exists."""
    return next(parent for parent in path.absolute().parents if parent.is_dir())


def _listed(names: Sequence[str], most: int = 5) -> str:
    """Names in a row, not all of very many."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
