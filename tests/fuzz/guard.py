"""A guard around one input: how it ended, and that nothing was executed, written elsewhere or held in memory for it."""

import hashlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from surd.errors import SurdError

ROOM = 2**30
"""Bytes that rubbish may cost at most above the normal need."""
LIMIT = 3 * ROOM
"""Bytes of address space beyond which an input is stopped; much of what is mapped is never held."""
PATIENCE = 60
"""Seconds after which an input counts as one that hangs."""
LONGEST_MESSAGE = 20_000
"""Characters of a message that somebody may still read."""
EXECUTING = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pickle.find_class"}
CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Case(Protocol):
    """An input: `lay` puts what it needs into an empty folder and returns what is to be done with it there."""

    def lay(self, folder: Path) -> Callable[[], object]: ...


def outcome(case: Case, folder: Path) -> str:
    """Runs one input in `folder`: "done", or the one message it was refused with. Everything else is raised."""
    outside, inside = folder / "outside", folder / "inside"
    for path in (outside, inside):
        path.mkdir()
    (outside / "precious").write_text("untouched\n")
    act = case.lay(inside)
    before = snapshot(outside)
    try:
        with watched(inside), bounded(), hurried():
            act()
        told = "done"
    except SurdError as error:
        told = str(error)
        assert told.strip(), "a refusal says why"
        assert len(told) < LONGEST_MESSAGE, f"a message of {len(told):,} characters"
    assert snapshot(outside) == before, "something outside was changed"
    assert sorted(os.listdir(folder)) == ["inside", "outside"], "something was written beside the folder"
    return told


def snapshot(folder: Path) -> dict[str, str]:
    """Every file beneath a folder with the hash of its content; links as what they say, not what they lead to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


@contextmanager
def bounded() -> Generator[None]:
    """Lets a block ask for `LIMIT` more address space: what wants more is an error here, not the machine's end."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def hurried() -> Generator[None]:
    """Ends a block that hangs with an error of its own."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"an input took more than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def highest() -> int:
    """The most memory that this process has held, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_highest() -> None:
    """Starts the high-water mark anew where the system can, so that what ran before hides nothing."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def watched(folder: Path) -> Generator[None]:
    """While the block runs, programs, pickles and changes outside `folder` are noted; at its end they are refused."""
    _WATCH.begin(os.path.realpath(folder))
    try:
        yield
    finally:
        found = _WATCH.end()
    assert not found, f"not allowed to rubbish: {found}"


class _Watch:
    """Python tells its audit hooks of every such act; a hook cannot be taken away, so one stands idle between."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._found: list[str] = []
        self._hooked = False

    def begin(self, folder: str) -> None:
        if not self._hooked:
            sys.addaudithook(self._hear)
            self._hooked = True
        self._found, self._folder = [], folder

    def end(self) -> list[str]:
        self._folder = None
        return self._found

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        folder = self._folder
        if folder is None:
            return
        if event in EXECUTING:
            self._found.append(f"{event} {arguments!r}"[:300])
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(folder):
            self._found.append(f"executed {arguments[0].co_filename}")
        elif event in CHANGING or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            paths = [one for one in arguments[:2] if isinstance(one, str | bytes | os.PathLike)]
            paths = [os.fsdecode(path) for path in (paths[:1] if event == "open" else paths)]
            if event != "open" and isinstance(arguments[-1], int) and arguments[-1] > 2:  # beneath an open folder
                paths = [os.path.join(os.readlink(f"/proc/self/fd/{arguments[-1]}"), path) for path in paths]
            self._found += [f"{event} {path!r}" for path in paths if not _allowed(path, folder)]


def _allowed(path: str, folder: str) -> bool:
    """Whether a place may be written: inside the folder, Python's own cache, an unnamed temporary file, or nowhere."""
    parent = os.path.realpath(os.path.dirname(path) or ".")  # a link may be replaced: what it leads to may not
    whole = os.path.join(parent, os.path.basename(path))
    unnamed = whole == os.path.realpath(os.environ.get("TMPDIR", "/tmp"))
    return unnamed or whole == os.devnull or "__pycache__" in whole or f"{whole}/".startswith(f"{folder}/")


_WATCH = _Watch()
