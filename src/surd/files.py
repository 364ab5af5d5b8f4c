"""Files: written whole or not at all, checked when read, and every failure named by its file."""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surd.errors import SurdError

if TYPE_CHECKING:
    import torch


def write_atomic(path: Path | str, data: bytes) -> None:
    """Writes `data` so that at every moment, a power cut included, `path` holds all of the old or all of the new."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data)


def write_json(path: Path | str, value: Any) -> None:
    """Writes `value` as indented JSON, atomically."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path | str) -> Any:
    """The value of a JSON file; a missing or damaged file is a `SurdError` that names it."""
    data = read_bytes(path)
    try:
        return json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SurdError(f"{path}: damaged, not JSON ({error})") from None


def read_bytes(path: Path | str) -> bytes:
    """The content of a file; a file that cannot be read is a `SurdError` that names it."""
    with _named(path):
        return Path(path).read_bytes()


def save_tensors(path: Path | str, tensors: "Mapping[str, torch.Tensor]", metadata: Mapping[str, str]) -> None:
    """Writes tensors as safetensors, atomically; the caller passes a tied tensor under one of its names."""
    from safetensors.torch import save_file

    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(whole, temporary, dict(metadata))


def load_tensors(path: Path | str, device: str = "cpu") -> "dict[str, torch.Tensor]":
    """The tensors of a safetensors file; a missing, truncated or foreign file is a `SurdError` that names it."""
    return _open_tensors(path, device, lambda file: {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def tensor_metadata(path: Path | str) -> dict[str, str]:
    """The texts that stand in the header of a safetensors file, read without its tensors."""
    return _open_tensors(path, "cpu", lambda file: dict(file.metadata() or {}))


def sha256(path: Path | str) -> str:
    """The checksum of a file's content, in hexadecimal."""
    with _named(path), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(path: Path | str, checksum: str) -> None:
    """Refuses a file whose content is not the one that `checksum` was taken of."""
    if sha256(path) != checksum:
        raise SurdError(f"{path}: damaged, its content does not match its checksum. Restore it from a copy.")


@contextmanager
def replacing(path: Path | str) -> Generator[Path]:
    """A new file beside `path`, written inside the block; it takes the place of `path` when the block succeeds."""
    target = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with _named(path):
            yield temporary
            _flush(temporary)
            temporary.replace(target)
            _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _open_tensors(path: Path | str, device: str, read: Callable[[Any], Any]) -> Any:
    from safetensors import SafetensorError, safe_open

    with _named(path):
        Path(path).open("rb").close()  # for the system's own message: safetensors says less about a missing file
        try:
            with safe_open(path, framework="pt", device=device) as file:
                return read(file)
        except SafetensorError as error:
            raise SurdError(f"{path}: damaged or not a safetensors file ({error})") from None


@contextmanager
def _named(path: Path | str) -> Generator[None]:
    """Turns what the system says about a file into a message that names it."""
    try:
        yield
    except OSError as error:
        raise SurdError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _flush(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no handle for a folder, and orders its renames itself
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
