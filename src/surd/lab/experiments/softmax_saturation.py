"""How does the spread of the scores make a softmax peaked, and is a peaked row ever right to be so?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, Series, beside
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, mean, near, number
from surd.lab.recall import Recall, recall
from surd.lab.softmax import entropy, normal
from surd.measure.gaussian import expected_rows
from surd.seed import generator

INTEGRAL = "exact one-dimensional integral for independent Gaussian logits"
Rows = dict[tuple[float, int], list[dict[str, float]]]
"""For each spread and number of keys, the statistics of each seed."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxSaturation(Experiment):
    """Spreads random logits more and more, and trains one small attention until its rows are sharp for a reason."""

    prediction: ClassVar[str] = (
        "Entropy and effective keys, 1 / Σ p², of rows of independent Gaussian logits follow an exact integral: they "
        "fall with the spread of the logits, whatever they mean. Training makes rows as sharp, and these are right."
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
        recalls = [recall(steps=self.steps, draw=generator(seed, self.name, "recall")) for seed in seeds]
        return Findings(
            comparisons=(*self._exact(found), *self._trained(recalls)),
            claims=self._claims(found, recalls),
            figures=self._figures(found),
            tables=(self._table(found),),
            notes=(
                "The range of a healthy entropy is therefore another one at the start than after training.",
                "The small attention looks up one of 16 keys; it shows that sharp rows can be right, not how often "
                "they are in large models.",
            ),
        )

    def _rows(self, std: float, keys: int, seed: int) -> dict[str, float]:
        draw = generator(seed, self.name, std, keys)
        logits = std * normal(max(400, self.logits // keys), keys, generator=draw)
        weights = logits.softmax(-1)
        return {
            "entropy": entropy(logits).mean().item(),
            "squares": weights.square().sum(-1).mean().item(),
            "top": weights.amax(-1).mean().item(),
        }

    def _exact(self, found: Rows) -> list[Comparison]:
        comparisons = []
        for (std, keys), runs in found.items():
            exact, where = expected_rows(std, keys), f"std {std:g}, {keys} keys"
            values = [run["entropy"] for run in runs]
            comparisons.append(near(f"H / ln n at {where}", values, exact.normalised_entropy, 0.015, INTEGRAL))
            values = [run["squares"] for run in runs]
            comparisons.append(near(f"Σ p² at {where}", values, exact.square_sum, 0.03, INTEGRAL))
        return comparisons

    def _trained(self, recalls: list[Recall]) -> list[Comparison]:
        return [
            near(
                "share of rows with a weight above 0.9 that point at the right key, before training",
                [one.right_at_start for one in recalls],
                1 / recalls[0].keys,
                0.03,
                "chance: the spread was set to 8 and means nothing",
            ),
        ]

    def _claims(self, found: Rows, recalls: list[Recall]) -> tuple[Claim, ...]:
        keys, std = self.table_keys, 8.0
        spread = found[std, keys]
        right = [one.right for one in recalls]
        return (
            Claim(
                text="Large scores make a softmax peaked by their size alone.",
                heard="a common explanation",
                comparisons=(
                    at_least(
                        f"mean largest weight at std {std:g}, {keys} keys, of logits that mean nothing",
                        [run["top"] for run in spread],
                        0.5,
                        "peaked: half of the weight on one key",
                    ),
                ),
                answer=(
                    f"With {keys} keys the largest weight is {mean(run['top'] for run in spread):.3f} at std {std:g} "
                    f"and {mean(run['top'] for run in found[1, keys]):.3f} at std 1; effective keys go from "
                    f"{number(1 / mean(run['squares'] for run in found[1, keys]))} to "
                    f"{number(1 / mean(run['squares'] for run in spread))}."
                ),
            ),
            Claim(
                text="A saturated softmax is never real confidence, only an effect of large numbers.",
                heard="a common explanation",
                comparisons=(
                    at_most(
                        "share of rows with a weight above 0.9 that point at the right key, after training",
                        right,
                        0.5,
                        "were it never confidence, sharp rows would be right no more often than not",
                    ),
                ),
                answer=(
                    f"At the start it is so: sharp rows are right in {mean(one.right_at_start for one in recalls):.1%} "
                    f"of cases, by chance. After {self.steps} updates {mean(one.sharp for one in recalls):.1%} of the "
                    f"rows have a weight above 0.9, and of these {mean(right):.1%} point at the right key. Sharpness "
                    "alone says nothing: at the start it is a fault of scale, in a trained head often its task."
                ),
            ),
        )

    def _figures(self, found: Rows) -> tuple[Lines, ...]:
        across = Axis(label="standard deviation of the logits", log=True)

        def lines(title: str, y: Axis, measured: str, exact: str, inverse: bool) -> Lines:
            power = -1 if inverse else 1
            return Lines(
                title=title,
                x=across,
                y=y,
                series=tuple(
                    series
                    for color, keys in enumerate(self.lengths)
                    for series in beside(
                        f"{keys} keys",
                        self.spreads,
                        [mean(run[measured] for run in found[std, keys]) ** power for std in self.spreads],
                        [getattr(expected_rows(std, keys), exact) ** power for std in self.spreads],
                        color,
                    )
                ),
            )

        tops = tuple(mean(run["top"] for run in found[std, self.table_keys]) for std in self.spreads)
        return (
            lines("Entropy as a share of ln n", Axis(label="H / ln n"), "entropy", "normalised_entropy", False),
            lines("Effective keys, 1 / Σ p²", Axis(label="keys", log=True), "squares", "square_sum", True),
            Lines(
                title=f"The largest weight of rows of {self.table_keys} keys",
                x=across,
                y=Axis(label="mean largest weight"),
                series=(Series(name="largest weight", x=tuple(map(float, self.spreads)), y=tops),),
            ),
        )

    def _table(self, found: Rows) -> Table:
        def row(std: float) -> tuple[str, ...]:
            runs, exact = found[std, self.table_keys], expected_rows(std, self.table_keys)
            top, share, squares = (mean(run[name] for run in runs) for name in ("top", "entropy", "squares"))
            cells = (top, share, exact.normalised_entropy)
            return (f"{std:g}", *(f"{cell:.3f}" for cell in cells), number(1 / squares), number(1 / exact.square_sum))

        return Table(
            caption=f"Rows of {self.table_keys} keys, mean over seeds",
            columns=("std", "largest weight", "H / ln n", "exact", "effective keys", "exact"),
            rows=tuple(map(row, self.spreads)),
        )
