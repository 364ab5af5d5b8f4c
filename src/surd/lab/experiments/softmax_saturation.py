"""How does the spread of the scores make a softmax peaked, and is a peaked row ever right to be so?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, curves
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, near, number
from surd.lab.recall import KEYS, recall
from surd.lab.samples import Statistics, average, each
from surd.lab.softmax import INTEGRAL, entropy, expected_top, normal
from surd.measure.softmax.gaussian import expected_rows
from surd.seed import generator

Found = dict[tuple[float, int], list[Statistics]]
"""For each spread and number of keys, the statistics of each seed."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxSaturation(Experiment):
    """Spreads random logits more and more, and trains one small attention until its rows are sharp for a reason."""

    prediction: ClassVar[str] = (
        "Entropy, effective keys (1 / Σ p²) and largest weight of rows of independent Gaussian logits follow exact "
        "integrals: rows become peaked with the spread of the logits, whatever they mean. Before training a sharp row "
        "points at the right key by chance alone."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "1/Zᵏ = ∫ tᵏ⁻¹ e^{-tZ} dt / Γ(k): the expectations for independent logits as integrals in one dimension.",
        "Olsson et al. 2022 (arXiv 2209.11895): trained heads that look sharply at one earlier token.",
        "Xiao et al. 2023 (arXiv 2309.17453): trained heads that look at the first token.",
    )

    spreads: tuple[float, ...] = (0.5, 1, 2, 4, 8, 16, 32)
    """Standard deviations of the logits."""
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    """Keys of a row."""
    table_keys: int = 64
    """Keys of the rows in the table."""
    logits: int = 200_000
    """Numbers drawn for each seed, spread and length, or enough for 400 rows."""
    steps: int = 250
    """Updates of the small attention."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {
            (std, keys): [self._rows(std, keys, seed) for seed in seeds]
            for std in self.spreads
            for keys in self.lengths
        }
        recalls = [recall(self.steps, generator(seed, self.name, "recall")) for seed in seeds]
        return Findings(
            comparisons=(*self._exact(found), *self._at_start(recalls)),
            claims=(self._peaked(found), self._confident(recalls)),
            figures=self._figures(found),
            tables=(self._table(found),),
            notes=(
                "The range of a healthy entropy is therefore another one at the start than after training.",
                "The small attention looks up one of 16 keys; it shows that sharp rows can be right, not how often "
                "they are in large models.",
            ),
        )

    def _rows(self, std: float, keys: int, seed: int) -> Statistics:
        draw = generator(seed, self.name, std, keys)
        logits = std * normal(max(400, self.logits // keys), keys, generator=draw)
        weights = logits.softmax(-1)
        return {
            "entropy": entropy(logits).mean().item(),
            "squares": weights.square().sum(-1).mean().item(),
            "top": weights.amax(-1).mean().item(),
        }

    def _exact(self, found: Found) -> Iterator[Comparison]:
        for (std, keys), runs in found.items():
            exact, where = expected_rows(std, keys), f"std {std:g}, {keys} keys"
            yield near(f"H / ln n at {where}", each(runs, "entropy"), exact.normalised_entropy, 0.01, INTEGRAL)
            yield near(f"Σ p² at {where}", each(runs, "squares"), exact.square_sum, exact.square_sum / 10, INTEGRAL)
            if keys == self.table_keys:
                yield near(f"largest weight at {where}", each(runs, "top"), expected_top(std, keys), 0.02, INTEGRAL)

    def _at_start(self, recalls: list[Statistics]) -> Iterator[Comparison]:
        yield near(
            "share of rows with a weight above 0.9 that point at the right key, before training",
            each(recalls, "right_at_start"),
            1 / KEYS,
            0.03,
            "chance: the spread was set to 8 and means nothing",
        )

    def _peaked(self, found: Found) -> Claim:
        keys, std = self.table_keys, 8.0
        spread, unit = found[std, keys], found[1, keys]
        return Claim(
            text="Large scores make a softmax peaked by their size alone.",
            heard="a common explanation",
            comparisons=(
                at_least(
                    f"mean largest weight at std {std:g}, {keys} keys, of logits that mean nothing",
                    each(spread, "top"),
                    0.5,
                    "peaked: half of the weight on one key",
                ),
            ),
            answer=(
                f"With {keys} keys the largest weight is {average(unit, 'top'):.3f} at std 1 and "
                f"{average(spread, 'top'):.3f} at std {std:g}; effective keys go from "
                f"{number(1 / average(unit, 'squares'))} to {number(1 / average(spread, 'squares'))}."
            ),
        )

    def _confident(self, recalls: list[Statistics]) -> Claim:
        return Claim(
            text="A saturated softmax is never real confidence, only an effect of large numbers.",
            heard="a common explanation",
            comparisons=(
                at_most(
                    "share of rows with a weight above 0.9 that point at the right key, after training",
                    each(recalls, "right"),
                    0.5,
                    "were it never confidence, sharp rows would be right no more often than not",
                ),
            ),
            answer=(
                f"At the start it is so: sharp rows are right in {average(recalls, 'right_at_start'):.1%} "
                f"of cases, by chance. After {self.steps} updates {average(recalls, 'sharp'):.1%} of the "
                f"rows have a weight above 0.9, and of these {average(recalls, 'right'):.1%} point at the right key. "
                "Sharpness alone says nothing: at the start it is a fault of scale, in a trained head often its task."
            ),
        )

    def _figures(self, found: Found) -> tuple[Lines, ...]:
        def lines(title: str, y: Axis, measured: str, exact: str, power: int) -> Lines:
            return Lines(
                title=title,
                x=Axis(label="standard deviation of the logits", log=True),
                y=y,
                series=curves(
                    {
                        f"{keys} keys": {
                            std: [value**power for value in each(found[std, keys], measured)] for std in self.spreads
                        }
                        for keys in self.lengths
                    },
                    {
                        f"{keys} keys": lambda std, keys=keys: getattr(expected_rows(std, keys), exact) ** power
                        for keys in self.lengths
                    },
                ),
            )

        return (
            lines("Entropy as a share of ln n", Axis(label="H / ln n"), "entropy", "normalised_entropy", 1),
            lines("Effective keys, 1 / Σ p²", Axis(label="keys", log=True), "squares", "square_sum", -1),
        )

    def _table(self, found: Found) -> Table:
        def row(std: float) -> tuple[str, ...]:
            runs, exact = found[std, self.table_keys], expected_rows(std, self.table_keys)
            return (
                f"{std:g}",
                f"{average(runs, 'top'):.3f} ({expected_top(std, self.table_keys):.3f})",
                f"{average(runs, 'entropy'):.3f} ({exact.normalised_entropy:.3f})",
                f"{number(1 / average(runs, 'squares'))} ({number(1 / exact.square_sum)})",
            )

        return Table(
            caption=f"Rows of {self.table_keys} keys: mean over seeds (exact integral)",
            columns=("std of the logits", "largest weight", "H / ln n", "1 / Σ p²"),
            rows=tuple(map(row, self.spreads)),
        )
