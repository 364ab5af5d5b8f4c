"""Vitals: what a watch tells of a training, as plain records; whoever runs the loop decides when to show them."""

from dataclasses import dataclass, replace
from math import inf

from surd.measure.sites import Site, Unseen


@dataclass(frozen=True, kw_only=True)
class Range:
    """Where a number is expected, both ends included, and who says so."""

    low: float = -inf
    high: float = inf
    source: str

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:.3g}"
        if self.low == -self.high == -inf:
            return "a finite number"
        if self.low == -inf:
            return f"at most {self.high:.3g}"
        return f"at least {self.low:.3g}" if self.high == inf else f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Something in a training that has left its range. It sounds once, when that begins."""

    kind: str
    """Name of the rule in `surd.measure.watching.alarms`."""
    site: str
    """Where it is worst."""
    step: int
    """The update in which it was seen."""
    value: float
    expected: Range
    advice: str
    """One sentence: what to do."""
    others: int = 0
    """How many further sites are outside the range."""

    def __str__(self) -> str:
        more = f" (and {self.others} more)" if self.others else ""
        return (
            f"step {self.step:,}: {self.kind} at {self.site}{more}: {self.value:.3g}, expected {self.expected} "
            f"({self.expected.source}). {self.advice}"
        )


@dataclass(frozen=True, kw_only=True)
class AttentionVitals:
    """One softmax over keys, from a sample of its rows; tuples hold one number a head.

    Where the heads cannot be told from the batch, one "head" is one head of one sentence. NaN: no row of that head
    sees enough keys, or a logit is no number.
    """

    site: Site
    heads: int | None
    rows: int
    """Rows read, of all heads together."""
    largest: float
    """Largest logit of a row, in absolute value, of the worst row; without what masks and other constants add.

    Not the largest of all |logit|: keys are hidden by all kinds of low numbers, -100 among them.
    """
    std: tuple[float, ...]
    """Standard deviation of the logits within a row, mean over rows."""
    entropy: tuple[float, ...]
    """Entropy over ln n, n the keys that the row sees: 1 for a uniform row, 0 for a one-hot one; mean over rows."""
    dead: tuple[float, ...]
    """Share of rows whose softmax has a Jacobian norm below 0.01: no gradient passes them."""

    @property
    def dead_rows(self) -> float:
        """Share of dead rows over all heads."""
        return sum(self.dead) / len(self.dead)


@dataclass(frozen=True, kw_only=True)
class StreamVitals:
    """The residual stream after one addition; sizes are the rms of a typical row, which outliers do not move."""

    site: Site
    rms: float
    start: float
    """The same where this stream begins: at the embedding, or behind the last norm that it ran through."""

    @property
    def growth(self) -> float:
        """Over the depth, from the beginning of the stream to here."""
        return self.rms / self.start if self.start else inf


@dataclass(frozen=True, kw_only=True)
class UpdateVitals:
    """How far one update moves one matrix."""

    name: str
    rms: float
    """Of the weights before it."""
    ratio: float
    """rms of the change over rms of the weights."""
    blank: bool
    """All entries were equal when the watch began (adapters start at zero): nothing to be a share of."""


@dataclass(frozen=True, kw_only=True)
class TieVitals:
    """Names that are declared to be one matrix, or were one when the watch began."""

    names: tuple[str, ...]
    parameters: int
    """How many different Parameters they are now; a whole tie is 1."""


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """What was seen of one update. One that was not to be observed is told only when it went non-finite."""

    step: int
    fresh: bool
    """The first forward of an untrained model: stricter ranges hold."""
    loss: float | None
    """None where neither the loop nor the model's output told it."""
    gradient_norm: float | None
    """Of the whole gradient as the optimiser got it, which is after any clipping."""
    attention: tuple[AttentionVitals, ...]
    stream: tuple[StreamVitals, ...]
    updates: tuple[UpdateVitals, ...]
    ties: tuple[TieVitals, ...]
    unseen: tuple[Unseen, ...]
    alarms: tuple[Alarm, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a watch knows from earlier updates; one that goes on with their training begins with it."""

    first: Vitals | None = None
    """The first observation, which growth is measured against; its sites name no source file."""
    sounding: tuple[str, ...] = ()
    """The kinds of alarm that have begun and not ended."""
    blank: tuple[str, ...] = ()
    """Matrices whose entries were all equal when the watch began."""


def without_files(vitals: Vitals) -> Vitals:
    """The same without the source files of its sites, which lie elsewhere on another machine."""
    attention = tuple(replace(one, site=replace(one.site, file="", line=0)) for one in vitals.attention)
    stream = tuple(replace(one, site=replace(one.site, file="", line=0)) for one in vitals.stream)
    return replace(vitals, attention=attention, stream=stream)
