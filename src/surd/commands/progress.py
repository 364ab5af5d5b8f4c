"""What a training looks like while it runs: events as words on standard error, one live line where it is a terminal."""

import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.live import Live

    from surd.metrics.score import Score
    from surd.training.events import Checked, Evaluated, Event, Finished, Progress, Started

SECONDS = 10.0
"""Time between two progress lines where there is no terminal."""


class Narrator:
    """Tells events; the latest progress stays in one line on a terminal, and comes as plain lines elsewhere."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._live: Live | None = None
        self._said = 0.0
        self._best = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False, soft_wrap=True)
            self._live = self._stack.enter_context(Live(console=console, transient=True, refresh_per_second=4))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """One finished line."""
        if self._live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._live.console.print(text, markup=False)

    def tell(self, event: "Event") -> None:
        """Whatever is to be said of an event."""
        from surd.training.events import (
            Alarmed,
            Checked,
            Evaluated,
            Finished,
            Interrupted,
            Preparing,
            Progress,
            Started,
            Verdict,
            Weighed,
        )

        match event:
            case Progress():
                self._progress(event)
            case Preparing():
                self._show(f"{event.doing} …")
            case Started():
                for line in started(event):
                    self.say(line)
            case Weighed():
                self.say(f"scales at the start: {event.ledger.summary()}")
            case Checked():
                for line in checked(event):
                    self.say(line)
            case Alarmed():
                self.say(f"alarm: {event.alarm}")
            case Verdict():
                self.say(f"step {event.step:,}: {event.sentence}")
            case Evaluated():
                if event.best:
                    self._best = f"best {event.scores[0]}"
                self.say(evaluated(event))
            case Interrupted():
                self.say(f"stopped after update {event.step:,}; go on with: {resume_line(event.run)}")
            case Finished():
                for line in finished(event):
                    self.say(line)

    def _progress(self, event: "Progress") -> None:
        line = progress_line(event, self._best)
        if self._live is not None:
            self._show(line)
        elif time.monotonic() - self._said >= SECONDS:
            self._said = time.monotonic()
            self.say(line)

    def _show(self, text: str) -> None:
        """The live line; without a terminal a line like any other."""
        if self._live is None:
            self.say(text)
        else:
            from rich.text import Text

            self._live.update(Text(text, overflow="ellipsis", no_wrap=True))


def progress_line(event: "Progress", best: str) -> str:
    """The state of a training in one line, what matters most first: a narrow terminal cuts off the end."""
    parts = [
        f"step {event.step:,}/{event.steps:,}",
        f"{duration(event.left)} left",
        f"loss {event.loss:.3f}",
        best,
        f"{event.rate:,.0f} tok/s",
        f"nll {event.nll:.3f}",
        f"epoch {event.epoch:.1f}",
        f"lr {event.learning_rate:.1e}",
        f"norm {event.gradient_norm:.2g}",
    ]
    return "  ".join(part for part in parts if part)


def started(event: "Started") -> Iterable[str]:
    """What is known before the first update."""
    shared = f", {event.shared:,} more are saved by tying" if event.shared else ""
    sequences, held_out = event.units
    yield f"{event.parameters:,} parameters{shared}"
    yield (
        f"{event.sequences:,} {sequences} in {event.epoch_batches:,} batches an epoch; {event.held_out:,} {held_out}; "
        f"{event.device}, {event.precision}, {event.threads} threads"
    )
    yield (
        f"held-out nll before training {event.start:.2f} nats a piece (even guessing, ln V: {event.uniform:.2f}; "
        f"knowing only how frequent each piece is: {event.frequencies:.2f})"
    )
    yield from event.notes
    if event.step:
        yield f"goes on after update {event.step:,} of at most {event.steps:,}"
    elif event.costs is not None and event.seconds is not None:
        yield (
            f"at most {event.steps:,} updates, about {duration(event.seconds)}: "
            f"{1000 * event.costs.update:.0f} ms an update (mean of {event.costs.timed} timed here), "
            f"{event.costs.evaluation:.1f} s an evaluation"
        )


def checked(event: "Checked") -> Iterable[str]:
    """The verdict on the scales before the first update, and what counts against them."""
    from surd.audit.report.words import counts, looked, places

    if event.report is None:
        yield f"scales could not be checked: {event.reason}"
        return
    yield f"scales checked: {counts(one.severity for one in event.report.findings)} ({looked(event.report)})"
    for one in event.report.failing:
        yield f"{one.severity} {one.rule} at {places(one)}: {one.message}. Mend: {one.mend}"


def evaluated(event: "Evaluated") -> str:
    """One line about held-out text."""
    scores = ", ".join(map(str, event.scores))
    mark = "best so far" if event.best else f"{event.waited} since the best"
    return f"step {event.step:,}: held-out nll {event.nll:.3f}, {scores} ({event.basis}; {mark})"


def finished(event: "Finished") -> Iterable[str]:
    """How a training ended, and what to do with it."""
    yield f"finished after {event.step:,} updates and {duration(event.seconds)}: {event.why}"
    if len(event.candidates) > 1:
        yield "; ".join(f"{one.name}: {one.scores[0]}" for one in event.candidates)
    yield f"the model: {event.chosen}; its scores on {event.basis} follow"


def score_lines(scores: "Iterable[Score]") -> Iterable[str]:
    """Final scores, each with its signature."""
    for score in scores:
        yield f"{score}  {score.signature}"


def resume_line(run: Path) -> str:
    """The command that goes on with a run."""
    return f"surd train --resume {shlex.quote(str(run))}"


def duration(seconds: float) -> str:
    """A time span in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
