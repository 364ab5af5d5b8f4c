"""Rulers: where on paper a number lies, and round numbers along the way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ruler:
    """Maps numbers to places between `start` and `end`, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        """Where a number lies; on a logarithmic ruler one that is not above 0 lies at the start."""
        if self.log and value <= 0:
            return self.start
        low, high, value = map(math.log10, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers between its ends."""
        found = log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high)
        slack = 1e-9 * abs(self.high)
        return [tick for tick in found if self.low - slack <= tick <= self.high + slack]


def ruler(values: Sequence[float], start: float, end: float, log: bool) -> Ruler:
    """A ruler that holds all values with a little room on both sides; an even one that comes near 0 begins there."""
    if log:
        values = [value for value in values if value > 0] or [1.0]
        low, high = min(values) / 1.25, max(values) * 1.25
        return Ruler(low=low, high=high, start=start, end=end, log=True)
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    below = 0.0 if 0 <= low < 0.4 * high else low - room
    return Ruler(low=below, high=high + room, start=start, end=end, log=False)


def even_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, every second or third one over many decades; 2 and 5 times them over few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = math.log10(high / low)
    factors, stride = ((1, 2, 5), 1) if decades < 2.3 else ((1,), max(1, round(decades / 6)))
    return [factor * 10.0**power for power in range(first, last + 1) if power % stride == 0 for factor in factors]


def short(value: float) -> str:
    """A tick's number, without needless digits."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        power = math.floor(math.log10(abs(value)) + 1e-9)
        lead = value / 10.0**power
        head = "" if math.isclose(lead, 1) else f"{lead:.3g}·"
        return f"{head}10{str(power).translate(SUPERSCRIPT)}"
    return f"{value:.6g}".replace("-", "−")


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
