"""A batch in a file: the arguments of one call, by name, in the format of safetensors."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from surd.errors import SurdError


def read_batch(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file; a name is that of the forward's argument."""
    if not path.is_file():
        raise SurdError(f"{path}: there is no such file; expected a .safetensors file with the arguments of one call")
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, OSError) as error:
        raise SurdError(f"{path}: not a .safetensors file ({error}); write one with save_file of safetensors") from None
    if not found:
        raise SurdError(f"{path}: holds no tensors; expected one for each argument of the forward, by its name")
    return found
