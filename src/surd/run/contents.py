"""What may lie in a run's folder: files and folders of its own, no way out of it, nothing that is read without end."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from surd.errors import SurdError


def refuse_strangers(folder: Path) -> None:
    """Refuses a folder with a link that leads out of it, or with a pipe or device in the place of a file.

    A run may come from anybody: what is read of it, and written when its training goes on, has to be its own.
    """
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:  # a training that runs meanwhile has put something in its place
                continue
            if stat.S_ISLNK(mode):
                if not os.path.realpath(path).startswith(f"{root}{os.sep}"):
                    raise SurdError(
                        f"{path}: a link to {os.readlink(path)}, which is not in the run's folder: a run holds all "
                        "that it needs itself. Put what the link leads to in its place."
                    )
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise SurdError(f"{path}: expected a file, found a pipe or device")


def refuse_foreign_names(description: Path, files: Mapping[str, Any], home: str) -> None:
    """Refuses checksums of anything but files beneath the folder `home` of the run that `description` describes."""
    for name in files:
        path = PurePosixPath(name)
        if path.parts[:1] != (home,) or ".." in path.parts or not name.isprintable():
            raise SurdError(f'{description}: damaged, "files" names {name[:100]!r}, expected files in {home}/')


def refuse_misshapen(description: Path, about: Mapping[str, Any]) -> None:
    """Refuses a record of a run's data and origin that is not of the form in which it is written."""
    data, origin = about.get("data", []), about.get("origin")
    if not (isinstance(data, list) and all(isinstance(name, str) for name in data)):
        raise SurdError(f'{description}: damaged, "data" is no list of names')
    if not (origin is None or _is_origin(origin)):
        raise SurdError(f'{description}: damaged, "origin" is not what this surd writes')


def _is_origin(origin: object) -> bool:
    """Whether this tells of runs whose weights were taken, each with its own data and origin."""
    if not (isinstance(origin, Mapping) and isinstance(runs := origin.get("runs"), list)):
        return False
    return all(
        isinstance(run, Mapping)
        and isinstance(run.get("data") or [], list)
        and (run.get("origin") is None or _is_origin(run["origin"]))
        for run in runs
    )
