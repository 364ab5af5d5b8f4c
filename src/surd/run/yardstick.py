"""Yardstick: the sources that an output is scored on, with all that counts as right for each of them."""

from dataclasses import dataclass

from surd.data.clean import tidy
from surd.data.corpus import Corpus
from surd.data.lines import Complaints, Input, missing
from surd.errors import SurdError


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """Each source once, in the order of the file; lines that repeat a source add references to it."""

    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    """What counts as right for each source, at least one text."""
    places: tuple[int, ...]
    """The line, counted from 0, on which each source stands first."""
    lines: int
    """Lines in the file."""

    @classmethod
    def read(cls, source: str, target: str | None = None, columns: str | None = None) -> "Yardstick":
        """From two aligned files, or from one that holds pairs; lines empty on both sides are left out."""
        complaints = Complaints()
        pairs = list(Corpus(source, target, columns).pairs(complaints))
        complaints.raise_any()
        found: dict[str, dict[str, None]] = {}
        places: dict[str, int] = {}
        for number, (question, answer) in enumerate((tidy(question), tidy(answer)) for question, answer in pairs):
            if question or answer:
                found.setdefault(question, {})[answer] = None
                places.setdefault(question, number)
        if not found:
            raise SurdError(f"{source}: every line is empty, there is nothing to score")
        return cls(
            sources=tuple(found),
            references=tuple(tuple(answers) for answers in found.values()),
            places=tuple(places.values()),
            lines=len(pairs),
        )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every source beside each of its references."""
        return [
            (source, reference)
            for source, references in zip(self.sources, self.references, strict=True)
            for reference in references
        ]

    def outputs(self, path: str) -> list[str]:
        """Another system's output for these sources, from a file with a line for every line, or for every source."""
        if fault := missing(path):
            raise SurdError(fault)
        complaints = Complaints()
        lines = [tidy(line) for line in Input(path).lines(complaints)]
        complaints.raise_any()
        if len(lines) == self.lines:
            return [lines[place] for place in self.places]
        if len(lines) == len(self.sources):
            return lines
        expected = f"{self.lines:,}" + (f" (or {len(self.sources):,})" if self.lines != len(self.sources) else "")
        raise SurdError(f"{path}: {len(lines):,} lines, expected {expected}: one for each line that is scored")
