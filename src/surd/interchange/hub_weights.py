"""The weights of a Hugging Face folder: safetensors, in one piece or in several; pickles are never read."""

from collections.abc import Sequence
from pathlib import Path

import torch

from surd.audit.file_weights import INDEX, FileWeights
from surd.errors import SurdError
from surd.files import read_json
from surd.interchange.opening import PICKLES, pickled

RUNNABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
STEMS = ("pytorch_model", "model", "consolidated", "tf_model", "flax_model")
"""How files of weights begin; beside them lie states of optimisers and of trainings."""


def weights_in(folder: Path) -> FileWeights | None:
    """The weights that a folder holds; None for a configuration alone. Pickles alone are refused."""
    names = _files(folder)
    if INDEX in names or any(name.endswith(".safetensors") and not name.startswith("adapter_") for name in names):
        return FileWeights(folder)
    if unsafe := [name for name in names if name.endswith(PICKLES) and name.startswith(STEMS)]:
        raise SurdError(pickled(folder, unsafe[0]))
    return None


def _files(folder: Path) -> Sequence[str]:
    try:
        return sorted(item.name for item in folder.iterdir())
    except OSError as error:
        raise SurdError(f"{folder}: cannot be read ({(error.strerror or str(error)).lower()})") from None


def most_common(weights: FileWeights) -> torch.dtype | None:
    """The format of most tensors, of those that a model can run in."""
    counts = dict.fromkeys(RUNNABLE, 0)
    for name in weights.names():
        if (kind := weights.dtype(name)) in counts:
            counts[kind] += 1
    return max(counts, key=lambda kind: counts[kind]) if any(counts.values()) else None


def reported(folder: Path) -> int | None:
    """How many numbers the index says there are, where it says so."""
    if not (folder / INDEX).is_file():
        return None
    about = read_json(folder / INDEX).get("metadata")
    total = about.get("total_parameters") if isinstance(about, dict) else None
    return total if isinstance(total, int) and not isinstance(total, bool) else None
