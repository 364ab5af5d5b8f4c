"""Progress: how far something that reads texts in blocks has come, noted on disk, so that a kill costs little.

What is noted counts only where the same is made (`of`) of the same texts: those in front of the place are read again
and compared with what they were, as a digest.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from surd.errors import SurdError
from surd.files import read_json, write_json

PROGRESS = "progress.json"
"""The note, in the folder of what is being made."""
EVERY = 8
"""Blocks between two notes: a kill costs the work of so many at most."""

Row = str | tuple[object, ...]
"""A text, or texts and what is known of them."""
Block = TypeVar("Block", bound=Sequence[Row])
State = TypeVar("State")


class Progress:
    """The note on one thing in the making."""

    def __init__(self, folder: Path, of: object) -> None:
        """`of` is whatever it follows from besides the texts: plain values."""
        self._path, self._of = folder / PROGRESS, digest_of(of)
        self._restart()

    def taken_up(
        self, read: Callable[[], Iterator[Block]], state: Callable[[Any], State | None]
    ) -> tuple[State | None, Iterator[Block]]:
        """What was noted last and the blocks behind that; none and all of them where nothing counts, in a folder that
        is empty then.

        `read` begins at the first block, and `state` reads a note: none where what it says is not on disk.
        """
        noted = self._noted()
        begun = None if noted is None else state(noted["state"])
        if noted is not None and begun is not None:
            blocks = self._counted(read())
            for _ in islice(blocks, noted["blocks"]):
                pass
            if (self.blocks, self._texts.hexdigest()) == (noted["blocks"], noted["texts"]):
                return begun, blocks
            self._restart()
        for path in self._path.parent.iterdir():  # of something else
            path.unlink()
        return None, self._counted(read())

    @property
    def due(self) -> bool:
        """Whether enough has been done since the last note."""
        return self.blocks % EVERY == 0

    def note(self, state: object) -> None:
        """Notes that all blocks so far are done and on disk; `state` (plain values) is what goes on from there."""
        texts = self._texts.hexdigest()
        write_json(self._path, {"of": self._of, "blocks": self.blocks, "texts": texts, "state": state})

    @property
    def noted(self) -> bool:
        """Whether the same was noted before, at any place."""
        return self._noted() is not None

    def _restart(self) -> None:
        self.blocks, self._texts = 0, hashlib.blake2b()

    def _counted(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks, with count and digest of those that were given."""
        for block in blocks:
            self.blocks += 1
            self._texts.update(spelt(block))
            yield block

    def _noted(self) -> dict[str, Any] | None:
        if not self._path.is_file():
            return None
        try:
            noted = read_json(self._path)
        except SurdError:
            return None
        whole = isinstance(noted, dict) and noted.keys() == {"of", "blocks", "texts", "state"}
        return noted if whole and noted["of"] == self._of and isinstance(noted["blocks"], int) else None


def spelt(block: Sequence[Row]) -> bytes:
    """The rows of a block in one piece."""
    rows = (row if isinstance(row, str) else "\t".join(map(str, row)) for row in block)
    return "".join(f"{row}\n" for row in rows).encode()


def digest_of(values: object) -> str:
    """A digest of plain values and of this version of surd, whose next one may make something else of them."""
    try:
        made_by = version("surd")
    except PackageNotFoundError:  # run from a source tree that was never installed
        made_by = "source"
    return hashlib.blake2b(json.dumps([made_by, values], sort_keys=True).encode(), digest_size=16).hexdigest()
