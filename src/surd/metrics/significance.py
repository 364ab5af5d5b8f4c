"""Significance: whether two systems differ by more than the choice of test lines, by paired bootstrap.

Both systems are scored on the same 1,000 resamples of the test lines (Koehn 2004). BLEU and chrF go through
sacreBLEU's own test; rates are resampled here from their counts a line, with the same seed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from surd.metrics.bleu import SacreBLEUMetric, reference_streams
from surd.metrics.error_rate import Rate
from surd.metrics.score import Metric, References, check_lines

if TYPE_CHECKING:
    import numpy
    from sacrebleu.significance import Result

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's own default, so that rates are drawn from the lines that BLEU is drawn from


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One system's score with its mean over the resamples and the 95 % interval around that mean."""

    score: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two systems by one metric; `p_value` is the chance of such a difference between equal systems, two-sided."""

    name: str
    system: Estimate
    other: Estimate
    p_value: float
    signature: str
    higher_is_better: bool


def compare(
    metrics: Iterable[Metric], system: Sequence[str], other: Sequence[str], references: References
) -> list[Comparison]:
    """Compares two outputs for the same lines by each metric."""
    check_lines(system, references)
    check_lines(other, references)
    return [_compare_by(metric, system, other, references) for metric in metrics]


def _compare_by(metric: Metric, system: Sequence[str], other: Sequence[str], references: References) -> Comparison:
    if isinstance(metric, SacreBLEUMetric):
        return _by_sacrebleu(metric, system, other, references)
    assert isinstance(metric, Rate), f"no paired bootstrap for {metric}"
    return _by_counts(metric, system, other, references)


def _by_sacrebleu(
    metric: SacreBLEUMetric, system: Sequence[str], other: Sequence[str], references: References
) -> Comparison:
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [("other", list(other)), ("system", list(system))]
    test = PairedTest(
        systems, {metric.name: metric.build()}, reference_streams(references), test_type="bs", n_samples=RESAMPLES
    )
    signatures, results = test()
    other_result, result = cast("list[Result]", results[metric.name])
    # sacreBLEU finds two equal scores to differ at p = 1 / (resamples + 1): no resample exceeds a difference of zero
    p = 1.0 if result.score == other_result.score else result.p_value
    return Comparison(
        name=metric.name,
        system=_from_result(result),
        other=_from_result(other_result),
        p_value=_number(p),
        signature=str(signatures[metric.name]),
        higher_is_better=True,
    )


def _by_counts(metric: Rate, system: Sequence[str], other: Sequence[str], references: References) -> Comparison:
    import numpy

    counts = [numpy.array(metric.line_counts(lines, references), dtype=float) for lines in (system, other)]
    random = numpy.random.default_rng(SEED)
    resamples = numpy.empty((RESAMPLES, 2))
    for row in resamples:
        chosen = random.integers(len(system), size=len(system))
        row[:] = [_rate(lines[chosen]) for lines in counts]
    score, other_score = (_rate(lines) for lines in counts)
    signature = metric(system, references).signature
    return Comparison(
        name=metric.name,
        system=_estimate(score, resamples[:, 0]),
        other=_estimate(other_score, resamples[:, 1]),
        p_value=p_value(resamples[:, 0] - resamples[:, 1], score - other_score),
        signature=f"{signature}|bs:{RESAMPLES}|seed:{SEED}",
        higher_is_better=metric.higher_is_better,
    )


def p_value(differences: "numpy.ndarray", observed: float) -> float:
    """The share of resampled differences that lie at least as far from their mean as the observed one lies from 0.

    Shifted to mean zero, the differences (resamples,) stand for those of two equal systems. One is added above and
    below the bar so that chance alone never gives zero.
    """
    tolerance = 1e-9  # two sums of the same counts in another order are the same difference
    exceeding = (abs(differences - differences.mean()) >= abs(observed) - tolerance).sum().item()
    return (exceeding + 1) / (len(differences) + 1)


def _rate(counts: "numpy.ndarray") -> float:
    """Counts (lines, 2) to per cent; 0 for a resample in which every reference is empty."""
    above, below = counts.sum(axis=0)
    return float(100 * above / below) if below else 0.0


def _estimate(score: float, resamples: "numpy.ndarray") -> Estimate:
    """The mean, and half the width between the 2.5 % and 97.5 % resample around it, as sacreBLEU has it."""
    ordered = sorted(resamples)
    cut = len(ordered) // 40
    return _around(score, float(resamples.mean()), float(ordered[-cut - 1] - ordered[cut]) / 2)


def _from_result(result: "Result") -> Estimate:
    return _around(result.score, _number(result.mean), _number(result.ci))


def _number(value: float | None) -> float:
    """A figure of sacreBLEU's, which calculates in numpy.float32; its bootstrap leaves none of them out."""
    assert value is not None
    return float(value)


def _around(score: float, mean: float, half: float) -> Estimate:
    return Estimate(score=score, mean=mean, low=mean - half, high=mean + half)
