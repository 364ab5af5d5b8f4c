"""`surd score`: how good a run is on a text, and whether it differs from another."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from surd.commands.translate import chosen_beam
from surd.errors import SurdError

if TYPE_CHECKING:
    from surd.metrics.score import Score
    from surd.metrics.significance import Comparison, Estimate
    from surd.run.report import Report


def score(
    run: Path,
    source: Path,
    reference: Path | None = None,
    /,
    *,
    with_: Annotated[tuple[Path, ...], Parameter(name="--with", negative=())] = (),
    against: Path | None = None,
    columns: str | None = None,
    beam: int | None = None,
    greedy: bool = False,
    length_penalty: float | None = None,
    json: bool = False,
) -> None:
    """Scores a trained run: outputs against references, or a language model by what it makes of a text.

    Parameters
    ----------
    run
        The folder of a trained run.
    source
        A file of sources, or of whole pairs (TSV or JSON lines), or of running text for a language model. Lines with
        the same source are references of one.
    reference
        The file of references, line by line beside the sources.
    with_
        A further run, whose model writes together with that of RUN, by the mean of their probabilities; may be given
        several times. They must have one vocabulary.
    against
        Another run, or a file with another system's output: prints both with 95 % intervals and p by paired bootstrap.
    columns
        What of a TSV to read, as in training: "1+2,3"; the run's own when not given.
    beam
        How many hypotheses are followed for each line; the recipe's when not given.
    greedy
        Follow one hypothesis only, the same as a beam of 1.
    length_penalty
        Score = sum of log-probabilities / length ** penalty; the recipe's when not given.
    json
        Print JSON instead of a table.
    """
    beam = chosen_beam(beam, greedy)
    if beam == 1 and length_penalty is not None:
        raise SurdError(
            "--length-penalty ranks hypotheses, and a beam of 1 (--greedy) has one: leave out one of the two"
        )
    from surd.run.report import report

    given = {"columns": columns, "beam": beam, "length_penalty": length_penalty}
    found = report(run, source, reference, others=with_, against=against, **given)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{found.system}: {found.basis}", file=sys.stderr)
    sys.stdout.write(as_json(found) if json else as_table(found))


def as_json(report: "Report") -> str:
    """Everything in the report, for programs."""
    return _dumped(asdict(report))


def as_table(report: "Report") -> str:
    """The scores with their signatures, and the comparison when there is one."""
    table = _aligned([_row(score) for score in report.scores])
    return f"{table}\n{_comparison(report)}" if report.comparisons else table


def _row(score: "Score") -> list[str]:
    return [score.name, f"{score.value:.{score.digits}f}", score.signature]


def _comparison(report: "Report") -> str:
    """One row a metric: both systems as mean ± half of the 95 % interval over the resamples, and p."""
    head = ["", report.system, str(report.other), "p", ""]
    rows = [
        [one.name, _interval(one.system), _interval(one.other), f"{one.p_value:.4f}", _verdict(one)]
        for one in report.comparisons
    ]
    signatures = "".join(f"{one.name}: {one.signature}\n" for one in report.comparisons)
    return f"{_aligned([head, *rows])}{signatures}"


def _interval(estimate: "Estimate") -> str:
    return f"{estimate.score:.2f} ({estimate.mean:.2f} ± {(estimate.high - estimate.low) / 2:.2f})"


def _verdict(comparison: "Comparison") -> str:
    """What p says at the usual level of 0.05."""
    if comparison.p_value >= 0.05:
        return "no difference shown"
    higher = comparison.system.score > comparison.other.score
    return "better" if higher == comparison.higher_is_better else "worse"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as columns; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
