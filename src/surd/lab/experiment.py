"""An experiment: a question, a prediction and a measurement that may refute it, found by the name of its file."""

import ast
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from surd.errors import SurdError, unknown
from surd.interchange.packages import installed
from surd.lab.figure import Figure
from surd.lab.finding import Claim, Comparison, Table
from surd.lab.record import Record

LEAST_SEEDS = 5
"""An interval over fewer seeds is too wide to say anything."""
FOLDER = Path(__file__).parent / "experiments"


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a measurement returns."""

    comparisons: tuple[Comparison, ...]
    """Against the prediction."""
    claims: tuple[Claim, ...]
    """What is often said, tested."""
    figures: tuple[Figure, ...]
    """The pictures, each with a table of its numbers."""
    tables: tuple[Table, ...] = ()
    """Further numbers."""
    notes: tuple[str, ...] = ()
    """What to keep in mind."""
    versions: dict[str, str] = field(default_factory=dict)
    """Further programs that were measured, with their versions."""


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """Base of all; a subclass is final, its fields are its sizes, and the first line of its file is its question."""

    prediction: ClassVar[str]
    """What is expected, and why."""
    sources: ClassVar[tuple[str, ...]]
    """Where the expectations come from."""

    @property
    def name(self) -> str:
        """The name of its file, with hyphens."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    @property
    def question(self) -> str:
        """The first line of its file."""
        return (sys.modules[type(self).__module__].__doc__ or "").partition("\n")[0]

    @property
    def settings(self) -> dict[str, str]:
        """Its sizes."""
        return {item.name: str(getattr(self, item.name)) for item in fields(self)}

    @abstractmethod
    def measure(self, seeds: Sequence[int]) -> Findings:
        """One value of each random quantity for each seed, beside its expectation."""


def run(experiment: Experiment, seeds: int) -> Record:
    """Measures with seeds 0, 1, …, and keeps what was found with all that it depends on."""
    if seeds < LEAST_SEEDS:
        raise SurdError(f"seeds: expected at least {LEAST_SEEDS}, found {seeds}: an interval needs them")
    found = experiment.measure(range(seeds))
    return Record(
        name=experiment.name,
        question=experiment.question,
        prediction=experiment.prediction,
        comparisons=found.comparisons,
        claims=found.claims,
        figures=found.figures,
        tables=found.tables,
        notes=found.notes,
        sources=experiment.sources,
        settings=experiment.settings,
        seeds=tuple(range(seeds)),
        versions=_versions() | found.versions,
    )


def names() -> list[str]:
    """The names of all experiments: the files of their folder."""
    return [path.stem.replace("_", "-") for path in sorted(FOLDER.glob("[a-z]*.py"))]


def questions() -> Iterator[tuple[str, str]]:
    """Name and question of each experiment, read from its file without importing it."""
    for name in names():
        text = (FOLDER / f"{name.replace('-', '_')}.py").read_bytes()
        yield name, (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def named(name: str) -> Experiment:
    """The experiment of that name, with its usual sizes; its file is imported now."""
    if name not in names():
        raise SurdError(unknown("experiment", name, names()))
    module = import_module(f"surd.lab.experiments.{name.replace('-', '_')}")
    return next(
        item()
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Experiment) and item.__module__ == module.__name__
    )


def _versions() -> dict[str, str]:
    return {"surd": installed("surd") or "", "torch": installed("torch") or "", "python": platform.python_version()}
