"""Fingerprints of a training: one short number of weights and optimiser state after every update, in hashes.jsonl.

A tensor's hash is the sum of its bytes read as whole numbers, of 64 bits where that comes out even, modulo 2^64. It is
taken where the tensor is, in one pass at the speed of memory, and does not depend on threads or on any order of
summation. It misses nothing that changes a single number, but two opposite changes in one tensor cancel, and so does
an exchange of two numbers: what it is for is to find the update at which two trainings part. Checkpoints have SHA-256.

    {"step": 16, "sum": "0f3c…"}                        after every update
    {"checkpoint": 16, "tensors": {"name": "81d2…"}}    when a checkpoint is written: every tensor by itself
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surd.errors import SurdError
from surd.files import append, read_bytes, write_atomic

NAME = "hashes.jsonl"


def hashes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The hash of each tensor; one transfer from the device for all of them."""
    by_device: dict[torch.device, list[str]] = {}
    for name, tensor in tensors.items():
        by_device.setdefault(tensor.device, []).append(name)
    found: dict[str, str] = {}
    for names in by_device.values():
        numbers = torch.stack([_whole(tensors[name]).sum(dtype=torch.int64) for name in names])
        found |= {name: f"{number % 2**64:016x}" for name, number in zip(names, numbers.tolist(), strict=True)}
    return {name: found[name] for name in tensors}


def _whole(tensor: Tensor) -> Tensor:
    """The bits of a tensor as whole numbers, the wider the fewer."""
    row = tensor.detach().reshape(-1)
    own = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[row.element_size()]
    return row.view(own if row.numel() * row.element_size() % 8 else torch.int64)


def combined(hashes: Mapping[str, str]) -> str:
    """One hash of many, which tells a name from another."""
    return hashlib.sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode()).hexdigest()[:16]


class Fingerprints:
    """The file of a run that holds them; opened for writing, it is cut to what a checkpoint has seen."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def cut(self, step: int) -> None:
        """Drops what was written after the update `step`."""
        lines = read_bytes(self.path).splitlines(keepends=True) if self.path.exists() else []
        write_atomic(self.path, b"".join(line for line in lines if 0 < _step_of(line) <= step))

    def update(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """The line of an update."""
        self._write({"step": step, "sum": combined(hashes(tensors))})

    def checkpoint(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """The line of a checkpoint."""
        self._write({"checkpoint": step, "tensors": hashes(tensors)})

    def read(self) -> tuple[dict[int, str], dict[int, dict[str, str]]]:
        """The hash after each update, and those of every tensor at each checkpoint; a damaged file is refused."""
        steps: dict[int, str] = {}
        checkpoints: dict[int, dict[str, str]] = {}
        for number, line in enumerate(read_bytes(self.path).splitlines(), 1):
            match _parsed(line):
                case {"step": int(step), "sum": str(one)}:
                    steps[step] = one
                case {"checkpoint": int(step), "tensors": dict(several)}:
                    checkpoints[step] = several
                case _:
                    raise SurdError(f"{self.path}: damaged, line {number} is not what this surd writes")
        return steps, checkpoints

    def _write(self, record: dict[str, Any]) -> None:
        append(self.path, (json.dumps(record, ensure_ascii=False) + "\n").encode())


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _step_of(line: bytes) -> int:
    """The update that a line is about; 0 for one that a kill has shortened."""
    match _parsed(line):
        case {"step": int(step)} | {"checkpoint": int(step)} if line.endswith(b"\n"):
            return step
    return 0
