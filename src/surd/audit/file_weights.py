"""Weights of safetensors files, in one piece or several: names from the header, numbers only on demand."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from surd.audit.weights import Weights
from surd.errors import SurdError
from surd.files import refuse_endless

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
LONGEST_HEADER = 100_000_000
"""Bytes, as in safetensors itself."""
HOLE = 2**30
"""Bytes in a row that were never written, which no download leaves behind that came to its end."""
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Where the numbers of a tensor lie."""

    path: Path
    begin: int
    """Bytes from the start of the file."""
    dtype: torch.dtype
    shape: torch.Size


class FileWeights(Weights):
    """Names, shapes and types are known at once; of the numbers, no more than one tensor is in memory at a time.

    `path` is a file, or a folder: then `model.safetensors`, the files that its index names, or all that lie there.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._stored: dict[str, Stored] = {}
        self.metadata: dict[str, str] = {}
        files, wanted = _files(self.path)
        for file in files:
            tensors, metadata = read_header(file)
            if twice := sorted(tensors.keys() & self._stored.keys()):
                raise SurdError(f"{file}: {twice[0]} stands in {self._stored[twice[0]].path.name} too; expected once")
            self._stored |= tensors
            self.metadata |= metadata
        if absent := sorted(set(wanted) - self._stored.keys()):
            raise SurdError(f"{self.path}: {absent[0]} is in the index and in none of its {len(files)} files")

    def names(self) -> list[str]:
        return list(self._stored)

    def shape(self, name: str) -> torch.Size:
        return self._stored[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._stored[name].dtype

    def tensor(self, name: str) -> Tensor:
        stored = self._stored[name]
        return _numbers(name, stored, stored.begin, stored.shape)

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """No more than these is read."""
        stored = self._stored[name]
        begin, end, _ = slice(begin, end).indices(stored.shape[0])
        shape = torch.Size((max(0, end - begin), *stored.shape[1:]))
        return _numbers(name, stored, stored.begin + begin * stored.shape[1:].numel() * stored.dtype.itemsize, shape)

    @property
    def module(self) -> None:
        return None


def _numbers(name: str, stored: Stored, begin: int, shape: torch.Size) -> Tensor:
    """Those that lie from a byte of the file on."""
    size = shape.numel() * stored.dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=stored.dtype)
    buffer = bytearray(size)
    try:
        with stored.path.open("rb") as file:
            file.seek(begin)
            read = file.readinto(buffer)
    except OSError as error:
        _refuse(stored.path, (error.strerror or str(error)).lower())
    if read != size:
        _refuse(stored.path, f"damaged: {name} ends after {read} of {size} bytes")
    return torch.frombuffer(buffer, dtype=stored.dtype).view(shape)


def read_header(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """Where each tensor of a file lies, and its metadata.

    Whatever the header claims is held against the size of the file before anything is made room for.
    """
    refuse_endless(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, LONGEST_HEADER):
                _refuse(path, f"not a safetensors file: a header of {length:,} bytes in a file of {size:,}")
            text = file.read(length)
            hole = _hole(file.fileno(), 8 + length, size)
        header = json.loads(text)
    except OSError as error:
        _refuse(path, (error.strerror or str(error)).lower())
    except (ValueError, RecursionError) as error:
        _refuse(path, f"not a safetensors file: its header is no JSON ({error})")
    if not isinstance(header, dict):
        _refuse(path, "not a safetensors file: its header is no table of tensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        _refuse(path, "damaged: its metadata is no table of texts")
    start = 8 + length
    stored = {name: _stored(path, name, entry, start, size) for name, entry in header.items()}
    if hole >= HOLE:
        _refuse(
            path, f"truncated or damaged: {hole:,} bytes in a row were never written, though the file has their size"
        )
    return stored, {str(key): str(value) for key, value in metadata.items()}


def _hole(file: int, begin: int, end: int) -> int:
    """Bytes of the first stretch that takes no room on the disk; 0 where all of it does, or the system cannot tell."""
    if not hasattr(os, "SEEK_HOLE"):
        return 0
    try:
        empty = os.lseek(file, begin, os.SEEK_HOLE)
    except OSError:
        return 0
    try:
        return os.lseek(file, empty, os.SEEK_DATA) - empty
    except OSError:  # nothing more is written behind it
        return end - empty


def _stored(path: Path, name: str, entry: Any, start: int, size: int) -> Stored:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        _refuse(path, f"damaged: {name} has no dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        _refuse(path, f"{name} has numbers of type {str(kind)[:40]}; expected one of {', '.join(TYPES)}")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        _refuse(path, f"damaged: {name} has shape {str(shape)[:60]} and data_offsets {str(offsets)[:60]}")
    begin, end = offsets
    needed = prod(shape) * TYPES[kind].itemsize
    if start + end > size or end - begin != needed:
        declared, kept = f"{prod(shape):,} numbers, {needed:,} bytes", max(0, min(end, size - start) - begin)
        _refuse(path, f"truncated or damaged: {name} is declared with {declared}; the file holds {kept:,} for it")
    return Stored(path=path, begin=start + begin, dtype=TYPES[kind], shape=torch.Size(shape))


def _counts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(type(one) is int and 0 <= one < 2**62 for one in value)


def _files(path: Path) -> tuple[Sequence[Path], Mapping[str, Any]]:
    """The files of a model, and what the index says is in them."""
    try:
        if not path.is_dir():
            return (path,), {}
        if (path / INDEX).is_file():
            return _indexed(path)
        found = sorted(one for one in path.glob("*.safetensors") if not one.name.startswith("adapter_"))
    except OSError as error:
        _refuse(path, (error.strerror or str(error)).lower())
    if not found:
        _refuse(path, "no .safetensors file in this folder")
    return [one for one in found if one.name == WHOLE] or found, {}


def _indexed(folder: Path) -> tuple[Sequence[Path], Mapping[str, Any]]:
    index = folder / INDEX
    try:
        if index.stat().st_size > LONGEST_HEADER:
            _refuse(index, f"{index.stat().st_size:,} bytes; no index is as long")
        found = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        _refuse(index, f"damaged, not JSON ({error})")
    wanted = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(wanted, dict) or not all(isinstance(one, str) for one in wanted.values()):
        _refuse(index, 'not an index of weights: expected {"weight_map": {name: file}}')
    names = list(dict.fromkeys(wanted.values()))
    for name in names:
        if Path(name).name != name:
            _refuse(index, f"names {name}, which is outside of this folder")
        if not (folder / name).is_file():
            _refuse(index, f"names {name}, which is not in this folder")
    return [folder / name for name in names], wanted


def _refuse(path: Path, reason: str) -> NoReturn:
    raise SurdError(f"{path}: {reason}") from None
