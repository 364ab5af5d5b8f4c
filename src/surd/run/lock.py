"""The lock on a run's folder: one training at a time, held by the system, so that a kill releases it.

Only the lock on the file counts, not that the file is there: nothing that is left over can block anybody.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from surd.errors import SurdError
from surd.files import open_file

LOCK = "training.lock"


@contextmanager
def held(folder: Path) -> Generator[None]:
    """The folder for this process alone inside the block; where another one has it, that is a `SurdError`."""
    handle = _handle(folder)
    try:
        if not _locked(handle):
            raise SurdError(
                f"{folder}: another process is training in this folder. Wait for it or stop it first; "
                "or name another folder."
            )
        yield
    finally:
        os.close(handle)  # which releases the lock


def is_held(folder: Path) -> bool:
    """Whether some process is at work in the folder."""
    handle = _handle(folder)
    try:
        return not _locked(handle)
    finally:
        os.close(handle)


def _handle(folder: Path) -> int:
    try:
        return open_file(folder / LOCK, os.O_RDWR)
    except OSError as error:
        raise SurdError(f"{folder}: cannot be written to ({(error.strerror or str(error)).lower()})") from None


def _locked(handle: int) -> bool:
    """Locks the file unless somebody else has; the lock goes with the handle, however the process ends."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
