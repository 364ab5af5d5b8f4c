"""Error rates: the share of wrong units, or of wrong lines, against the nearest of several references."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from surd.errors import SurdError
from surd.metrics.score import Metric, References, Score, check_lines, own_version, reference_count

Unit = Literal["phone", "character"]

_SPLIT: Mapping[Unit, Callable[[str], Sequence[str]]] = MappingProxyType(
    {
        "phone": str.split,
        "character": lambda line: line,  # a text is the sequence of its code points, blanks included
    }
)


@dataclass(frozen=True, kw_only=True)
class Rate(Metric):
    """A percentage: a sum over the lines divided by another, so that its counts a line are all it needs."""

    @abstractmethod
    def counts(self, hypothesis: str, references: Sequence[str]) -> tuple[int, int]:
        """What one line adds above and below the bar."""

    @abstractmethod
    def definition(self) -> str:
        """The part of the signature that says what is above and below the bar."""

    def __call__(self, hypotheses: Sequence[str], references: References) -> Score:
        above, below = (sum(column) for column in zip(*self.line_counts(hypotheses, references), strict=True))
        signature = f"nrefs:{reference_count(references)}|{self.definition()}:{below}|version:{own_version()}"
        value = 100 * above / below
        return Score(name=self.name, value=value, signature=signature, higher_is_better=self.higher_is_better)

    def line_counts(self, hypotheses: Sequence[str], references: References) -> list[tuple[int, int]]:
        """The counts of every line; refused when nothing stands below the bar."""
        check_lines(hypotheses, references)
        counts = [self.counts(*line) for line in zip(hypotheses, references, strict=True)]
        if not any(below for _, below in counts):
            raise SurdError(f"cannot compute {self.name}: every reference is empty")
        return counts


@dataclass(frozen=True, kw_only=True)
class EditRate(Rate):
    """Insertions, deletions and substitutions per unit of the nearest reference, in per cent; it can exceed 100.

    The nearest reference needs the fewest edits; of several, the longest counts, so the order of references
    does not matter.
    """

    higher_is_better: bool = False
    unit: Unit

    def counts(self, hypothesis: str, references: Sequence[str]) -> tuple[int, int]:
        split = _SPLIT[self.unit]
        output = split(hypothesis)
        return min(
            ((edit_distance(output, split(line)), len(split(line))) for line in references),
            key=lambda pair: (pair[0], -pair[1]),
        )

    def definition(self) -> str:
        return f"unit:{self.unit}|edits:nearest|denominator:{self.unit}s of the nearest reference"


@dataclass(frozen=True, kw_only=True)
class WrongLines(Rate):
    """Lines whose phones are those of none of their references, in per cent: a line is the pronunciation of a word."""

    higher_is_better: bool = False

    def counts(self, hypothesis: str, references: Sequence[str]) -> tuple[int, int]:
        return int(hypothesis.split() not in [line.split() for line in references]), 1

    def definition(self) -> str:
        return "unit:line|wrong:equal to no reference|denominator:lines"


@dataclass(frozen=True, kw_only=True)
class RightLines(Rate):
    """Lines that equal one of their references, in per cent; only blanks at the ends of a line are free."""

    higher_is_better: bool = True

    def counts(self, hypothesis: str, references: Sequence[str]) -> tuple[int, int]:
        return int(hypothesis.strip() in [line.strip() for line in references]), 1

    def definition(self) -> str:
        return "unit:line|right:equal to any reference|denominator:lines"


word_error_rate = WrongLines(name="WER")
"""Words whose whole pronunciation is none of those listed, which is what WER means for pronunciation."""
phone_error_rate = EditRate(name="PER", unit="phone")
character_error_rate = EditRate(name="CER", unit="character")
accuracy = RightLines(name="accuracy")


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other (Levenshtein 1966).

    A whole column of the table is one integer: bit i of `up` says that the column grows by one from row i to i + 1,
    bit i of `down` that it falls (Myers 1999, in the form of Hyyrö 2003). Python's integers have any length.
    """
    if not first:
        return len(second)
    places: dict[Hashable, int] = {}
    for row, symbol in enumerate(first):
        places[symbol] = places.get(symbol, 0) | 1 << row
    rows = (1 << len(first)) - 1
    last = 1 << (len(first) - 1)
    up, down, distance = rows, 0, len(first)
    for symbol in second:
        equal = places.get(symbol, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down  # rows where the diagonal step costs nothing
        rises = down | ~(diagonal | up)
        falls = diagonal & up
        distance += bool(rises & last) - bool(falls & last)
        rises, falls = rises << 1 | 1, falls << 1  # the row above the first grows by one in each column
        up = (falls | ~(diagonal | rises)) & rows
        down = rises & diagonal & rows
    return distance
