"""Score: a number that carries its signature, and the metrics that make one from hypotheses and references."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from surd.errors import SurdError

References = Sequence[Sequence[str]]
"""All references of each line: `references[i]` are the right outputs for line i, at least one."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number with the way it was made; rates and BLEU are on the scale of 0 to 100."""

    name: str
    value: float
    signature: str
    """Everything that the number depends on, in sacreBLEU's form `key:value|key:value`."""
    higher_is_better: bool
    digits: int = 2
    """Decimals that are worth reading."""

    def __str__(self) -> str:
        return f"{self.name} {self.value:.{self.digits}f}"

    def better_than(self, other: "Score") -> bool:
        """Whether this score is strictly better than another of the same metric."""
        assert self.name == other.name, f"{self.name} and {other.name} cannot be compared"
        return self.value > other.value if self.higher_is_better else self.value < other.value


@dataclass(frozen=True, kw_only=True)
class Metric(ABC):
    """A way to score: called with hypotheses and references it gives a `Score`."""

    name: str
    higher_is_better: bool

    @abstractmethod
    def __call__(self, hypotheses: Sequence[str], references: References) -> Score:
        """The score of one output line per line of references; every line weighs as the metric's definition says."""


def check_lines(hypotheses: Sequence[str], references: References) -> None:
    """Refuses what cannot be scored: nothing at all, sides of unequal length, a line without a reference."""
    if len(hypotheses) != len(references):
        raise SurdError(
            f"cannot score: {len(hypotheses):,} output lines but references for {len(references):,}; "
            "line n of the output must answer line n of the references"
        )
    if not hypotheses:
        raise SurdError("cannot score: there is no line")
    if bare := [number for number, lines in enumerate(references, start=1) if not lines]:
        raise SurdError(f"cannot score: line {bare[0]:,} has no reference ({len(bare):,} such lines)")


def reference_count(references: References) -> str:
    """The number of references a line as signatures write it: `1`, `3`, or `var` where lines differ."""
    counts = {len(lines) for lines in references}
    return str(counts.pop()) if len(counts) == 1 else "var"


def own_version() -> str:
    """surd's version as signatures write it."""
    try:
        return f"surd-{version('surd')}"
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "surd-source"
