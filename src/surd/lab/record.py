"""Records: all that one run of an experiment found, and on what it ran, in a file that can be checked and read."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surd.errors import SurdError
from surd.files import read_json, write_json
from surd.lab.figure import Figure
from surd.lab.finding import Claim, Comparison, Table
from surd.lab.verdict import Verdict, together
from surd.part import structure, unstructure

FORMAT = 1
"""The version of the layout of the file."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of an experiment."""

    name: str
    """The experiment."""
    question: str
    """What it asks."""
    prediction: str
    """What is expected, and why."""
    comparisons: tuple[Comparison, ...]
    """What was measured against the prediction."""
    claims: tuple[Claim, ...]
    """What is often said about it, tested with the same measurement."""
    figures: tuple[Figure, ...]
    """The pictures, as numbers."""
    tables: tuple[Table, ...]
    """The numbers beneath."""
    notes: tuple[str, ...]
    """What to keep in mind when reading it."""
    sources: tuple[str, ...]
    """Where the expectations come from."""
    settings: dict[str, str]
    """The sizes of the measurement."""
    seeds: tuple[int, ...]
    """The seeds, one value of each random quantity for each."""
    versions: dict[str, str]
    """Programs that the numbers depend on."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on the prediction."""
        return together(comparison.verdict for comparison in self.comparisons)

    @property
    def signature(self) -> str:
        """What to quote beside a number of this record, so that another can get the same."""
        settings = digest(self.settings)[:8]
        versions = "|".join(f"{name}:{version}" for name, version in self.versions.items())
        return f"{self.name}|seeds:{','.join(map(str, self.seeds))}|settings:{settings}|{versions}"


def write_record(record: Record, path: Path) -> None:
    """Writes a record with a checksum over all of it."""
    content = unstructure(record)
    write_json(path, {"format": FORMAT, "signature": record.signature, "checksum": digest(content), "record": content})


def read_record(path: Path | str) -> Record:
    """The record in a file; one that is damaged, or from another version, is a `SurdError` that names it."""
    whole = read_json(path)
    if not isinstance(whole, dict) or not {"format", "signature", "checksum", "record"} <= whole.keys():
        raise SurdError(f"{path}: not the record of an experiment")
    if whole["format"] != FORMAT:
        raise SurdError(f"{path}: a record of format {whole['format']}, but this version reads {FORMAT}. Run it again.")
    if digest(whole["record"]) == whole["checksum"]:
        record = structure(Record, whole["record"], str(path))
        if record.signature == whole["signature"]:
            return record
    raise SurdError(f"{path}: damaged, its content does not match its checksum. Run the experiment again.")


def digest(content: Any) -> str:
    """A checksum of plain values that does not depend on how they are laid out in a file."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
