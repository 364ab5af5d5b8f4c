"""A task: how one sort of data is recognised, cut into symbols, sized and scored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar

from surd.data.survey import Survey
from surd.errors import SurdError, unknown
from surd.metrics.score import Metric, References, Score


class Task(ABC):
    """What all tasks have; one file each, whose final subclass learns from pairs or from running text."""

    name: ClassVar[str]
    """What `--task` and the recipe call it: the name of its file."""
    use: ClassVar[str]
    """The command that uses what it has learnt."""
    sizes: ClassVar[tuple[tuple[float, str], ...]]
    """Shipped recipes by size of data, in the task's own unit: (below so much, name); the last has no upper end."""

    def size(self, amount: int) -> str:
        """The name of the shipped recipe that fits so much data."""
        return next(name for limit, name in self.sizes if amount < limit)


class PairTask(Task):
    """What reading and scoring need to know of a sort of pairs; `sizes` counts usable pairs."""

    use: ClassVar[str] = "translate"
    drop_copies: ClassVar[bool]
    """Whether a pair with equal sides is a fault in the data."""
    general: ClassVar[bool] = False
    """Whether the task takes any pairs that no other task claims."""
    tokenizers: ClassVar[Mapping[str, tuple[str, str]]]
    """For each side, `source` and `target`, the kind of its tokenizer and the reason for it."""

    @abstractmethod
    def reason(self, survey: Survey) -> str | None:
        """Why the pairs look like this task, in one line; None when they do not."""

    @abstractmethod
    def metrics(self, references: References) -> tuple[Metric, ...]:
        """The metrics of this task; the first one selects checkpoints."""

    def score(self, hypotheses: Sequence[str], references: References) -> list[Score]:
        """All scores of the outputs; the first one selects checkpoints."""
        return [metric(hypotheses, references) for metric in self.metrics(references)]


class TextTask(Task):
    """Learns from running text, where the text itself is what is to be written; `sizes` counts characters."""

    use: ClassVar[str] = "generate"


def names() -> list[str]:
    """The names of all tasks: the files of this folder, this one apart."""
    package = import_module("surd.tasks")
    return sorted(module.name for module in iter_modules(package.__path__) if module.name != "task")


def named(name: str) -> Task:
    """The task of that name; its file is imported now."""
    if name not in names():
        raise SurdError(f"task: {unknown('task', name, names())}")
    module = import_module(f"surd.tasks.{name}")
    return next(
        item()
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Task) and item.__module__ == module.__name__
    )


def pair_tasks() -> list[PairTask]:
    """All tasks that learn from pairs."""
    return [task for name in names() if isinstance(task := named(name), PairTask)]


def text_tasks() -> list[TextTask]:
    """All tasks that learn from running text."""
    return [task for name in names() if isinstance(task := named(name), TextTask)]


def guess(survey: Survey) -> tuple[PairTask, str]:
    """The task that the pairs look like, and why: a particular one before the general one."""
    tasks = sorted(pair_tasks(), key=lambda task: task.general)
    claims = [(task, reason) for task in tasks if (reason := task.reason(survey))]
    particular = [claim for claim in claims if not claim[0].general]
    if len(particular) > 1:
        found = "; ".join(f"{task.name}: {reason}" for task, reason in particular)
        raise SurdError(f"the pairs look like several tasks ({found}). Name one with --task.")
    return claims[0]
