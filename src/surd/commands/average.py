"""`surd average`: a run whose weights are the mean of trained ones."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from surd.commands.train import use_line
from surd.errors import SurdError


def average(
    *runs: Annotated[Path, Parameter(name="RUN [RUN ...]")],
    out: Path | None = None,
    last: int | None = None,
    steps: str | None = None,
) -> None:
    """Averages trained weights into a new run: those of one run's kept evaluations, or the models of several runs.

    Parameters
    ----------
    runs
        The folder of a run, whose newest evaluations are averaged; or several runs of one vocabulary and architecture.
    out
        The folder to make for the run with the mean.
    last
        Take so many of the newest evaluations; all that are kept when not given.
    steps
        Take the evaluations after these updates: 400,450,500.
    """
    if not runs:
        raise SurdError("there is nothing to average: name a run, or several of one vocabulary and architecture")
    if out is None:
        raise SurdError("--out is missing: name the folder to make for the average")
    from surd.run import Run
    from surd.training.merge import averaged

    merged = averaged([Run.open(run) for run in runs], out, last, numbers(steps))
    print(f"{out}: {merged.weights_of}", file=sys.stderr)
    print(f"use it: {use_line(out)}", file=sys.stderr)


def numbers(words: str | None) -> list[int] | None:
    """Numbers between commas."""
    if words is None:
        return None
    found = [word.strip().replace("_", "") for word in words.split(",")]
    if not all(word.isdecimal() for word in found):
        raise SurdError(f'--steps: expected numbers of updates as in 400,450,500, found "{words}"')
    return [int(word) for word in found]
