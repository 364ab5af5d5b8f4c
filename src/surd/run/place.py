"""Where runs lie: places that are free for a new one, what was found instead of one, what a kill has left of one."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from surd.errors import SurdError, nearest
from surd.run.lock import is_held

ABOUT = "run.json"
"""The file that makes a folder a run."""


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


def sweep(folder: Path, name: str) -> None:
    """Removes what a kill has left of runs that were to be made under this name: nobody holds their lock."""
    for path in folder.iterdir():
        number = path.name.removeprefix(f".{name}.").removesuffix(".partial")
        if path.name != f".{name}.{number}.partial" or not number.isdigit() or path.is_symlink() or not path.is_dir():
            continue
        with suppress(SurdError):  # somebody else's
            if not is_held(path):
                shutil.rmtree(path, ignore_errors=True)


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
    elif path.is_file():
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
