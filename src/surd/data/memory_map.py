"""Files of numbers as arrays that are read only where they are looked at."""

from pathlib import Path

import numpy as np

from surd.errors import SurdError


def mapped(path: Path, kind: str, items: int) -> np.ndarray:
    """A file of so many numbers as an array; its size must be what the index says."""
    expected = np.dtype(kind).itemsize * items
    try:
        found = path.stat().st_size
    except OSError as error:
        raise SurdError(f"{path}: {(error.strerror or str(error)).lower()}; prepare the data again.") from None
    if found != expected:
        raise SurdError(f"{path}: damaged, {found:,} bytes instead of {expected:,}; prepare the data again.")
    return np.asarray(np.memmap(path, kind, "r")) if items else np.zeros(0, kind)
