"""Learning-rate schedules: the rate of every update as a pure function of its number.

Updates are counted from 1: the first one already has a rate above zero.
"""

import math
from dataclasses import dataclass

from surd.part import Part


def inverse_root(step: int, warmup: int) -> float:
    """Rises to 1 in `warmup` updates, then falls with the root of the update's number: min(s/w, √(w/s))."""
    return min(step / max(warmup, 1), math.sqrt(max(warmup, 1) / step))


def cosine(step: int, warmup: int, steps: int) -> float:
    """Rises to 1 in `warmup` updates, then falls along half a cosine, to 0 at update `steps` and after it."""
    if step < warmup:
        return step / warmup
    gone = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return 0.5 * (1 + math.cos(math.pi * gone))


@dataclass(frozen=True, kw_only=True)
class InverseRootDecay(Part, kind="inverse_root"):
    """The paper's curve with its peak named: `rate` · min(s/w, √(w/s)). Vaswani et al. 2017, section 5.3."""

    rate: float = 5e-4
    """The peak, reached at the end of the warm-up."""
    warmup: int = 4000
    """Updates in which the rate rises in a straight line."""

    def __call__(self, step: int, total_steps: int, d_model: int) -> float:
        """The rate of update `step`; neither the length of the training nor the width of the model matters."""
        return self.rate * inverse_root(step, self.warmup)


@dataclass(frozen=True, kw_only=True)
class Paper(Part, kind="paper"):
    """The paper's schedule as printed: `factor` · d_model^-½ · min(s^-½, s·w^-3/2). Vaswani et al. 2017, equation 3."""

    factor: float = 1.0
    """Multiplies the printed curve, whose peak is (d_model · warmup)^-½."""
    warmup: int = 4000
    """Updates in which the rate rises in a straight line."""

    def __call__(self, step: int, total_steps: int, d_model: int) -> float:
        """The rate of update `step` for a model of width `d_model`."""
        return self.factor * (d_model * max(self.warmup, 1)) ** -0.5 * inverse_root(step, self.warmup)


@dataclass(frozen=True, kw_only=True)
class Cosine(Part, kind="cosine"):
    """Half a cosine from `rate` to `rate` · `floor`. Loshchilov and Hutter 2017, without restarts."""

    rate: float = 1e-3
    """The peak, reached at the end of the warm-up."""
    warmup: int = 1000
    """Updates in which the rate rises in a straight line."""
    steps: int | None = None
    """The update at which the floor is reached; none means the training's own limit."""
    floor: float = 0.0
    """What remains at the end, as a share of the peak."""

    def __call__(self, step: int, total_steps: int, d_model: int) -> float:
        """The rate of update `step` of a training of `total_steps` updates."""
        fall = cosine(step, self.warmup, self.steps or total_steps)
        return self.rate * (fall if step < self.warmup else self.floor + (1 - self.floor) * fall)


Schedule = InverseRootDecay | Paper | Cosine


def last_update(schedule: Schedule) -> int | None:
    """The update from which on the rate is 0 by the schedule's own word; none where it never is."""
    return schedule.steps if isinstance(schedule, Cosine) and schedule.floor == 0 else None
