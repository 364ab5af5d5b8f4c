"""A folder of prepared data: made whole, or gone again with one message when the disk does not take it."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from surd.errors import SurdError


@contextmanager
def made(folder: Path | str) -> Generator[Path]:
    """A new folder, to be filled inside the block; when that fails or is interrupted, it is removed again.

    What the system refuses while it is filled (a full disk, a folder that must not be written) is a `SurdError`: all
    that the block reads has its own words for what cannot be read.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True)
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        place = error.filename or folder
        raise SurdError(f"{place}: {reason}. The prepared data cannot be written; nothing of them is left.") from error
