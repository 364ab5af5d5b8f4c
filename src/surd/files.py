"""Files: written whole or not at all, checked when read, and every failure named by its file.

Whatever is written into a run's folder goes through five functions here (`open_file`, `write`, `sync`, `rename`,
`sync_folder`): a test stops the writer at any of them.
"""

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from surd.errors import SurdError

if TYPE_CHECKING:
    import torch

_BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows would translate line ends


def open_file(path: Path | str, flags: int) -> int:
    """A handle on a file, which is made if need be."""
    return os.open(path, flags | os.O_CREAT | _BINARY, 0o666)


def write(handle: int, data: bytes | memoryview) -> None:
    """Writes all of `data`, however much of it the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync(handle: int) -> None:
    """Waits until what was written is on the disk."""
    os.fsync(handle)


def rename(old: Path | str, new: Path | str) -> None:
    """Moves a file or folder; a file at `new` is replaced in the same instant."""
    os.replace(old, new)


def sync_folder(folder: Path | str) -> None:
    """Waits until a folder's list of names is on the disk."""
    if os.name == "nt":
        return  # Windows has no handle for a folder, and orders its renames itself
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path | str, data: bytes) -> None:
    """Writes `data` so that at every moment, a power cut included, `path` holds all of the old or all of the new."""
    with replacing(path) as temporary, _opened(temporary, os.O_WRONLY | os.O_TRUNC) as handle:
        write(handle, data)


def append(path: Path | str, data: bytes) -> None:
    """Appends `data` in one write: a kill can shorten it, never mix it with something else."""
    with _named(path), _opened(path, os.O_WRONLY | os.O_APPEND) as handle:
        write(handle, data)


def flush(path: Path | str) -> None:
    """Waits until all that was appended to a file is on the disk."""
    with _named(path), _opened(path, os.O_RDWR) as handle:
        sync(handle)


def create(path: Path | str, keep: int = 0) -> BinaryIO:
    """A file to be written bit by bit, on the disk once it is closed; of one that is there, `keep` bytes stay."""
    return io.BufferedWriter(_Written(path, keep), buffer_size=1 << 16)


def refuse_unwritable(path: Path | str) -> None:
    """A file that could not be written is a `SurdError`: asked before the work whose end it is to hold."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise SurdError(f"{path}: is a directory; expected the name of a file")
    if not target.parent.is_dir():
        raise SurdError(f"{path}: there is no folder {Path(path).parent} to write it in")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise SurdError(f"{path}: nothing may be written in {target.parent}")


def write_json(path: Path | str, value: Any) -> None:
    """Writes `value` as indented JSON, atomically."""
    write_atomic(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """`value` as a file of indented JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path | str) -> Any:
    """The value of a JSON file; a missing or damaged file is a `SurdError` that names it."""
    refuse_endless(path)
    data = read_bytes(path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and thousands of brackets
        raise SurdError(f"{path}: damaged, not JSON ({error})") from None


def refuse_endless(path: Path | str) -> None:
    """A pipe, a socket or a device where a file belongs is a `SurdError`: reading it may never end."""
    with _named(path):
        mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SurdError(f"{path}: expected a file, found a pipe, a socket or a device, which may have no end")


def read_bytes(path: Path | str) -> bytes:
    """The content of a file; a file that cannot be read is a `SurdError` that names it."""
    with _named(path):
        return Path(path).read_bytes()


def save_tensors(path: Path | str, tensors: "Mapping[str, torch.Tensor]", metadata: Mapping[str, str]) -> None:
    """Writes tensors as safetensors, atomically; the caller passes a tied tensor under one of its names."""
    # safetensors itself writes by other means, or needs all of it once more in memory. Its format, version 0.x: length
    # of the header, header (JSON, padded to 8 bytes), the tensors without gaps, the widest types first.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor, begin = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        kind = _safetensors_type(tensor.dtype)
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, _opened(temporary, os.O_WRONLY | os.O_TRUNC) as handle:
        write(handle, len(text).to_bytes(8, "little") + text)
        for name in order:
            write(handle, tensor_bytes(tensors[name]))


def tensor_bytes(tensor: "torch.Tensor") -> memoryview:
    """The numbers of a tensor as they lie in memory, row by row."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


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
    """A new file beside `path`, written inside the block; it takes the place of `path` when the block succeeds.

    A device or a pipe is refused: a file in the place of /dev/null would break the machine.
    """
    target = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    with _named(path):
        if target.exists() and not (target.is_file() or target.is_dir()):
            raise SurdError(f"{path}: a device or pipe, which no file may replace; send the output there by >")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with _named(path):
            yield temporary
            with _opened(temporary, os.O_RDWR) as handle:
                sync(handle)
            rename(temporary, target)
            sync_folder(target.parent)
    finally:
        with suppress(OSError):  # such as of a name that is too long
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


@contextmanager
def _opened(path: Path | str, flags: int) -> Generator[int]:
    handle = open_file(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


class _Written(io.RawIOBase):
    """The unbuffered end of a file that is being written."""

    def __init__(self, path: Path | str, keep: int) -> None:
        self._handle = open_file(path, os.O_WRONLY)
        os.ftruncate(self._handle, keep)
        os.lseek(self._handle, keep, os.SEEK_SET)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._handle

    def write(self, data: Any) -> int:
        write(self._handle, data)
        return memoryview(data).nbytes

    def close(self) -> None:
        if not self.closed:
            try:
                sync(self._handle)
            finally:
                os.close(self._handle)
                super().close()


def _safetensors_type(dtype: "torch.dtype") -> str:
    """How safetensors spells a type."""
    import torch

    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    names |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"}
    return (names | {torch.uint8: "U8", torch.bool: "BOOL"})[dtype]
