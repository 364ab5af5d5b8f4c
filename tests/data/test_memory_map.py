"""Mapped files: the numbers as they were written, also after their memory was given back; no file of another size."""

from pathlib import Path

import numpy as np
import pytest

from surd.data.memory_map import Mapped
from surd.errors import SurdError

RESIDENT = Path("/proc/self/statm")


def test_what_was_released_is_read_again(tmp_path: Path) -> None:
    numbers = np.arange(5000, dtype=np.uint16)
    numbers.tofile(tmp_path / "numbers")
    mapped = Mapped(tmp_path / "numbers", "uint16", 5000)
    for _ in range(2):
        assert np.array_equal(mapped.array, numbers)
        mapped.release()


@pytest.mark.skipif(not RESIDENT.exists(), reason="resident memory is read from /proc")
def test_release_gives_memory_back(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(bytes(2**25))
    mapped = Mapped(tmp_path / "numbers", "int64", 2**22)
    shared = [_shared()]
    assert mapped.array.sum() == 0
    shared.append(_shared())
    mapped.release()
    shared.append(_shared())
    assert shared[1] - shared[0] >= 2**25 and shared[2] - shared[0] < 2**23


def test_a_file_of_another_size_is_refused_and_an_empty_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(bytes(16))
    with pytest.raises(SurdError, match="damaged, 16 bytes instead of 24"):
        Mapped(tmp_path / "numbers", "int64", 3)
    with pytest.raises(SurdError, match="no such file"):
        Mapped(tmp_path / "other", "int64", 3)
    (tmp_path / "numbers").write_bytes(b"")
    empty = Mapped(tmp_path / "numbers", "int64", 0)
    empty.release()
    assert len(empty.array) == 0


def _shared() -> int:
    """Bytes of files that this process holds in memory."""
    return int(RESIDENT.read_text().split()[2]) * 4096
