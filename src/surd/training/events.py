"""What a training tells while it runs: plain records, for whoever draws them.

All negative log-likelihoods are in nats for each target piece, ends of sentences and lines included, without smoothing.
"""

from dataclasses import dataclass
from pathlib import Path

from surd.audit.judge import Report
from surd.measure.ledger import Ledger
from surd.measure.watching.vitals import Alarm
from surd.metrics.score import Score
from surd.training.pace import Costs


@dataclass(frozen=True, kw_only=True)
class Preparing:
    """Something slow begins before the first step."""

    doing: str


@dataclass(frozen=True, kw_only=True)
class Started:
    """Everything is ready for the next step."""

    step: int
    """Updates already done: above zero when a run is taken up again."""
    steps: int
    sequences: int
    """Pairs, or windows of running text, to train on."""
    held_out: int
    units: tuple[str, str]
    """What the two count."""
    epoch_batches: int
    parameters: int
    """Numbers that are stored and trained; a tied matrix counts once."""
    shared: int
    """Numbers that ties save: what the same model would hold besides, untied."""
    device: str
    precision: str
    threads: int
    costs: Costs | None
    """What a calibration measured; none when a run is taken up again."""
    seconds: float | None
    """Expected time to the step limit by those costs, evaluations and final scores included."""
    start: float
    """Held-out nll before the first step."""
    uniform: float
    """ln V: the nll of a model that holds every piece equally likely."""
    frequencies: float
    """The nll of a model that knows only how often each piece occurs."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The scales of the fresh model, beside what its parts predict."""

    ledger: Ledger


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The scales of the fresh model, judged by the rules of `surd check`; a finding stops nothing."""

    report: Report | None
    """None where the model could not be judged."""
    reason: str = ""
    """Why it could not."""


@dataclass(frozen=True, kw_only=True)
class Alarmed:
    """A scale has left its range."""

    alarm: Alarm


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One update was made."""

    step: int
    steps: int
    epoch: float
    loss: float
    """What is minimised (smoothed), mean over the latest updates."""
    nll: float
    rate: float
    """Real source and target tokens a second."""
    learning_rate: float
    gradient_norm: float
    """Before clipping."""
    left: float
    """Seconds to the step limit at the present pace; patience may end the training sooner."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the model is learning, with the reason."""

    step: int
    learning: bool
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Held-out text was measured."""

    step: int
    nll: float
    scores: tuple[Score, ...]
    """The first one selects."""
    lines: int
    """Sources or windows that were scored."""
    basis: str
    """The same in words, and how outputs were found."""
    best: bool
    waited: int
    """Evaluations since the best one."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint stands on disk."""

    step: int
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The user asked to stop; the checkpoint of `step` holds everything that is needed to go on."""

    step: int
    run: Path


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Weights that may become the model, with their score at the full beam."""

    name: str
    scores: tuple[Score, ...]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The model for use is written."""

    step: int
    why: str
    scores: tuple[Score, ...]
    lines: int
    basis: str
    chosen: str
    candidates: tuple[Candidate, ...]
    seconds: float
    run: Path


Event = (
    Preparing | Started | Weighed | Checked | Progress | Alarmed | Verdict | Evaluated | Saved | Interrupted | Finished
)
