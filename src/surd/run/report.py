"""Report: how good a run is on a text, with references alone or beside another system."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from surd.data.lines import Complaints
from surd.data.text import Text
from surd.errors import SurdError
from surd.metrics.score import Score
from surd.metrics.significance import Comparison, compare
from surd.run.folder import Run
from surd.run.use import translator as opened_translator
from surd.run.use import writer
from surd.run.yardstick import Yardstick
from surd.tasks import PairTask, TextTask


@dataclass(frozen=True, kw_only=True)
class Report:
    """Scores with their signatures, and the comparison with another system when one was named."""

    system: str
    basis: str
    """What was scored and how its output was found, in words."""
    notes: tuple[str, ...]
    """What to know of the runs that were scored: training that has not finished."""
    scores: tuple[Score, ...]
    """Those of the task, the selecting one first, and the perplexity of the references."""
    other: str | None
    comparisons: tuple[Comparison, ...]
    """By paired bootstrap, one for each metric of the task; none without another system."""


def report(
    path: Path | str,
    source: Path | str,
    reference: Path | str | None = None,
    *,
    others: Sequence[Path | str] = (),
    against: Path | str | None = None,
    columns: str | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
) -> Report:
    """The scores of the run `path` on two aligned files, or on one of pairs, read with the run's own `columns`.

    The runs `others` write together with it. `against` is another run, or a file of output lines. What is wrong with a
    file is found before anything is decoded.
    """
    run, *members = [Run.open(one) for one in (path, *others)]
    if isinstance(run.task, TextTask):
        given = {"reference": reference, "with": others or None, "against": against, "columns": columns, "beam": beam}
        return _of_text(run, source, given | {"length_penalty": length_penalty})
    if reference is None:
        columns = columns or run.recipe.data.columns
    yardstick = Yardstick.read(str(source), None if reference is None else str(reference), columns)
    other = None if against is None else _Other(Path(against), yardstick)
    translator, task = opened_translator(run, *members), run.task
    assert isinstance(task, PairTask), "there are two sorts of task"
    decoding = translator.decoding(beam, length_penalty)
    outputs = translator.outputs(yardstick.sources, decoding)
    scores = task.score(outputs, yardstick.references)
    sources, targets = zip(*yardstick.pairs, strict=True)
    comparisons: list[Comparison] = []
    if other is not None:
        metrics = task.metrics(yardstick.references)
        comparisons = compare(metrics, outputs, other.outputs(beam, length_penalty), yardstick.references)
    return Report(
        system=" + ".join(map(str, (path, *others))),
        basis=(
            f"{len(yardstick.sources):,} sources with {len(yardstick.pairs):,} references, "
            f"beam {decoding.beam}, length penalty {decoding.length_penalty:g}"
        ),
        notes=tuple(note for one in (run, *members, other.run if other else None) if one and (note := one.note())),
        scores=(*scores, translator.perplexity(sources, targets)),
        other=None if against is None else str(against),
        comparisons=tuple(comparisons),
    )


def _of_text(run: Run, source: Path | str, given: Mapping[str, object]) -> Report:
    """The scores of a language model on a file of running text; `given` are options that are for pairs."""
    if wrong := [name.replace("_", "-") for name, value in given.items() if value is not None]:
        raise SurdError(f"{run.folder}: a language model is scored on one text, without {', '.join(wrong)}")
    text, complaints = Text(str(source)), Complaints()
    scores = writer(run).score_lines(_sound(text, complaints))
    return Report(
        system=str(run.folder),
        basis=f"{text.name} in windows of {run.recipe.data.context} tokens, none overlapping",
        notes=tuple(note for note in (run.note(),) if note),
        scores=tuple(scores),
        other=None,
        comparisons=(),
    )


def _sound(text: Text, complaints: Complaints) -> Iterator[str]:
    """The lines of a text; what is wrong with it is told at its end."""
    yield from text.lines(complaints)
    complaints.raise_any()


class _Other:
    """The system to compare with: a file is read at once, a run is opened at once and decodes when it is asked."""

    def __init__(self, path: Path, yardstick: Yardstick) -> None:
        self._sources = yardstick.sources
        self._lines = yardstick.outputs(str(path)) if path.is_file() else None
        self.run = Run.open(path) if self._lines is None else None

    def outputs(self, beam: int | None, length_penalty: float | None) -> Sequence[str]:
        if self.run is None:
            assert self._lines is not None
            return self._lines
        translator = opened_translator(self.run)
        return translator.outputs(self._sources, translator.decoding(beam, length_penalty))
