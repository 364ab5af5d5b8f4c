"""Files written whole or not at all, and refused by name when damaged."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from surd.errors import SurdError
from surd.files import (
    load_tensors,
    read_json,
    replacing,
    save_tensors,
    sha256,
    tensor_metadata,
    verify,
    write_atomic,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_written_file_has_the_usual_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    plain, link = tmp_path / "plain", tmp_path / "link"
    plain.write_bytes(b"")
    usual = plain.stat().st_mode
    link.symlink_to(plain)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert plain.read_bytes() == b"new"
    assert plain.stat().st_mode == usual


def test_json_comes_back(tmp_path: Path) -> None:
    value = {"ä": [1, 2.5, None, True]}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_come_back_bit_equal_with_their_texts(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.randn(5, 3).to(dtype), "turned": torch.randn(2, 3).to(dtype).t()}
    save_tensors(tmp_path / "t", tensors, {"format": "1"})
    read = load_tensors(tmp_path / "t")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert tensor_metadata(tmp_path / "t") == {"format": "1"}


def test_one_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"abc")
    checksum = sha256(path)
    verify(path, checksum)
    path.write_bytes(b"abd")
    with pytest.raises(SurdError, match=r"a: damaged, its content does not match"):
        verify(path, checksum)


@pytest.mark.parametrize("read", [read_json, load_tensors, tensor_metadata, sha256])
def test_what_is_missing_or_a_folder_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SurdError, match=path.name):
            read(path)


@pytest.mark.parametrize("read", [read_json, load_tensors, tensor_metadata])
def test_a_damaged_file_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "weights"
    save_tensors(path, {"a": torch.zeros(100)}, {})
    whole = path.read_bytes()
    for damaged in (b"", b"\xff" * 64, whole[: len(whole) // 2], whole[:12]):
        path.write_bytes(damaged)
        with pytest.raises(SurdError, match="weights: damaged"):
            read(path)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SurdError, match=r"gone/a\.json: no such file or directory"):
        write_json(tmp_path / "gone" / "a.json", 1)
