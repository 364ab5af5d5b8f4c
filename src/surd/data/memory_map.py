"""Files of numbers as arrays that are read only where they are looked at, and whose memory can be given back."""

import mmap
from pathlib import Path

import numpy as np

from surd.errors import SurdError


class Mapped:
    """A file of numbers as an array. What was looked at of it counts as memory of this process until `release`."""

    def __init__(self, path: Path, kind: str, items: int) -> None:
        """Opens a file of so many numbers; its size must be what the index says."""
        self.path = path
        expected = np.dtype(kind).itemsize * items
        try:
            found = path.stat().st_size
            if found != expected:
                raise SurdError(f"{path}: damaged, {found:,} bytes instead of {expected:,}; prepare the data again.")
            with path.open("rb") as file:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if items else None
        except OSError as error:
            raise SurdError(f"{path}: {(error.strerror or str(error)).lower()}; prepare the data again.") from None
        self.array = np.zeros(0, kind) if self._memory is None else np.frombuffer(self._memory, kind)

    def release(self) -> None:
        """Gives the memory back; the array stays, and is read again from the disk, or its cache, where it is used."""
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):  # Windows has no such call
            self._memory.madvise(mmap.MADV_DONTNEED)
