"""The journal of a run: one JSON object a line in metrics.jsonl, written as it happens."""

import json
from pathlib import Path
from typing import Any

from surd.files import append, write_atomic

NAME = "metrics.jsonl"


class Journal:
    """Appends lines; knows how many there are, so that a resumed run can cut those written after its checkpoint."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Opens the journal in `folder` with its first `keep` lines; what was written after them is dropped."""
        self.path = folder / NAME
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        kept = [line for line in lines[:keep] if line.endswith(b"\n")]
        write_atomic(self.path, b"".join(kept))
        self.length = len(kept)

    def write(self, record: dict[str, Any]) -> None:
        """Appends one line in one write: a kill can shorten the last line, never mix two."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=True) + "\n"
        append(self.path, line.encode())
        self.length += 1
