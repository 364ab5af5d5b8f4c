"""The files of weights of a Hugging Face folder: safetensors, in one piece or in several; pickles are never read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from surd.errors import SurdError
from surd.interchange.opening import PICKLES, pickled

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LONGEST = 256 * 2**20
"""Bytes of an index."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where each tensor lies."""

    folder: Path
    places: Mapping[str, str]
    """Name of the tensor to name of the file."""
    total: int | None
    """How many numbers the index says there are."""

    @property
    def paths(self) -> list[Path]:
        """The files, each once."""
        return [self.folder / name for name in dict.fromkeys(self.places.values())]

    def tensors(self) -> dict[str, Tensor]:
        """All of them, as long as somebody holds them: what lies in a file is brought in when it is read."""
        found: dict[str, Tensor] = {}
        for path in self.paths:
            with opened(path) as file:
                found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        return found

    def dtype(self) -> torch.dtype | None:
        """That of most tensors."""
        counts: dict[torch.dtype, int] = {}
        for path in self.paths:
            with opened(path) as file:
                for name in file.keys():  # noqa: SIM118
                    kind = TYPES.get(file.get_slice(name).get_dtype())
                    if kind is not None:
                        counts[kind] = counts.get(kind, 0) + 1
        return max(counts, key=lambda kind: counts[kind]) if counts else None


TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Formats that a model can run in, by their names in the file."""


def opened(path: Path) -> safe_open:
    """A file of safetensors; one that is truncated, or is none, is refused."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise SurdError(f"{path}: truncated or not a .safetensors file ({error})") from None


def weights_in(folder: Path) -> Files | None:
    """The weights that a folder holds; None for a configuration alone. Pickles alone are refused."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    names = sorted(item.name for item in folder.iterdir() if item.is_file())
    safe = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    if ONE in safe:
        safe = [ONE]
    if safe:
        places: dict[str, str] = {}
        for name in safe:
            with opened(folder / name) as file:
                places |= dict.fromkeys(file.keys(), name)
        return Files(folder=folder, places=places, total=None)
    unsafe = [name for name in names if name.endswith(PICKLES) and name not in ("training_args.bin", "optimizer.pt")]
    weights = [name for name in unsafe if name.startswith(("pytorch_model", "model", "consolidated", "tf_", "flax_"))]
    if weights:
        raise SurdError(pickled(folder, weights[0]))
    return None


def _indexed(folder: Path) -> Files:
    """In several files, listed by an index; names that lead out of the folder are refused."""
    path = folder / INDEX
    try:
        if path.stat().st_size > LONGEST:
            raise SurdError(f"{path}: {path.stat().st_size:,} bytes; no index of weights is as long")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SurdError(f"{path}: cannot be read as JSON ({error})") from None
    places = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise SurdError(f'{path}: expected {{"weight_map": {{tensor: file}}}}')
    for name in dict.fromkeys(places.values()):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise SurdError(f"{path}: names {name!r}; expected .safetensors files of the folder itself")
        if not (folder / name).is_file():
            raise SurdError(f"{path}: names {name}, which is not in the folder; the weights are incomplete")
    about = found.get("metadata")
    total = about.get("total_parameters") if isinstance(about, dict) else None
    return Files(folder=folder, places=places, total=total if isinstance(total, int) else None)
