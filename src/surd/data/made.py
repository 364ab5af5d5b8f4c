"""A folder of prepared data: made whole, or gone again with one message when the disk does not take it.

A kill leaves it half made, with a note of what is done in it (`surd.data.progress`): then it is gone on with.
"""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from surd.data.progress import PROGRESS
from surd.errors import SurdError


@contextmanager
def made(folder: Path | str) -> Generator[Path]:
    """A new folder, or one that a kill left half made, to be filled inside the block; when that fails or is
    interrupted, it is removed again.

    What the system refuses while it is filled (a full disk, a folder that must not be written) is a `SurdError`: all
    that the block reads has its own words for what cannot be read.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=(folder / PROGRESS).is_file())
        try:
            for half in folder.glob("*.partial"):  # a file that was being written
                half.unlink()
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        place = error.filename or folder
        raise SurdError(f"{place}: {reason}. The prepared data cannot be written; nothing of them is left.") from error
