"""What happens to attention in longer rows, which 1/√d_k does not know of?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, Series, beside
from surd.lab.finding import Claim, Comparison, Table, at_least, mean, near, number
from surd.lab.softmax import entropy, normal
from surd.measure.gaussian import expected_rows
from surd.seed import generator

REFERENCE = 64
"""The number of keys at which the rules that know the length agree with 1/√d_k."""
RULES: dict[str, Callable[[int], float]] = {
    "1/√d_k": lambda keys: 1.0,
    "ln n / √d_k": lambda keys: math.log(keys) / math.log(REFERENCE),
    "√ln n / √d_k": lambda keys: math.sqrt(math.log(keys) / math.log(REFERENCE)),
}
"""The standard deviation of the logits of independent unit queries and keys, by the number of keys."""
INTEGRAL = "exact one-dimensional integral for independent Gaussian logits"
Rows = dict[str, dict[int, list[dict[str, float]]]]
"""For each rule and number of keys, the statistics of each seed."""


@dataclass(frozen=True, kw_only=True)
class Length(Experiment):
    """Attends to more and more keys with values of rms 1, with three rules for the scale."""

    prediction: ClassVar[str] = (
        "Scaled by 1/√d_k alone, attention over independent keys becomes even: H / ln n rises as 1 - 1 / (2 ln n) and "
        "the output shrinks as √(e / n). To hold H / ln n the logits must grow as √ln n; as ln n, they sharpen more."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "H ≈ ln n - s²/2 for independent Gaussian logits of standard deviation s, so H / ln n ≈ 1 - s² / (2 ln n).",
        "The output Σ p v of independent values of rms 1 has mean square Σ p².",
        "Chiang & Cholak 2022 (arXiv 2202.12172); Nakanishi 2025 (arXiv 2501.19399): a factor ln n on the logits.",
        "Blake et al. 2024 (arXiv 2407.17465): the size of attention's output by the length.",
    )

    lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    """Keys of a row."""
    logits: int = 400_000
    """Numbers drawn for each seed, rule and length, or enough for 200 rows."""
    value_width: int = 32
    """Features of each value."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {
            name: {keys: [self._rows(name, keys, seed) for seed in seeds] for keys in self.lengths} for name in RULES
        }
        return Findings(
            comparisons=(*self._exact(found), *self._shrinking(found)),
            claims=self._claims(found),
            figures=(
                self._figure(found, "Entropy", Axis(label="H / ln n"), "entropy", "normalised_entropy"),
                self._figure(found, "Size of the output", Axis(label="rms", log=True), "output", "output_rms"),
                self._tops(found),
            ),
            tables=(self._table(found),),
            notes=(
                "Logits are independent here. A trained head that looks at one key separated from all others needs a "
                "gap that grows as ln n to hold its weight.",
            ),
        )

    def _rows(self, name: str, keys: int, seed: int) -> dict[str, float]:
        draw = generator(seed, self.name, name, keys)
        rows = max(200, self.logits // keys)
        logits = RULES[name](keys) * normal(rows, keys, generator=draw)
        weights = logits.softmax(-1)
        # Ten rows share their values, as queries do: values of its own for each row would take long to draw.
        values = normal(rows // 10, keys, self.value_width, generator=draw)
        mixed = weights[: rows // 10 * 10].unflatten(0, (-1, 10)) @ values
        return {
            "entropy": entropy(logits).mean().item(),
            "output": mixed.square().mean().sqrt().item(),
            "top": weights.amax(-1).mean().item(),
        }

    def _exact(self, found: Rows) -> list[Comparison]:
        comparisons = []
        for name, runs in found.items():
            for keys, seeds in runs.items():
                exact, where = expected_rows(RULES[name](keys), keys), f"{name}, {keys} keys"
                shares, sizes = [run["entropy"] for run in seeds], [run["output"] for run in seeds]
                comparisons.append(near(f"H / ln n at {where}", shares, exact.normalised_entropy, 0.01, INTEGRAL))
                near_to = exact.output_rms * 0.06
                comparisons.append(near(f"output rms at {where}", sizes, exact.output_rms, near_to, "√E Σ p², exact"))
        return comparisons

    def _shrinking(self, found: Rows) -> list[Comparison]:
        keys = max(self.lengths)
        sizes = [run["output"] for run in found["1/√d_k"][keys]]
        law = math.sqrt(math.e / keys)
        return [near(f"output rms at 1/√d_k, {keys} keys", sizes, law, law * 0.06, "√(e/n), its limit for many keys")]

    def _claims(self, found: Rows) -> tuple[Claim, ...]:
        short, long = min(self.lengths), max(self.lengths)
        plain = found["1/√d_k"]
        outputs = [run["output"] for run in plain[long]]

        def change(name: str, what: str) -> list[float]:
            return [b[what] - a[what] for a, b in zip(found[name][short], found[name][long], strict=True)]

        held, sharpened = change("√ln n / √d_k", "entropy"), change("ln n / √d_k", "entropy")
        return (
            Claim(
                text="Dividing by √d_k keeps attention at its scale.",
                heard="a common explanation",
                comparisons=(
                    at_least(
                        f"rms of the output over {long} keys, over that of the values",
                        outputs,
                        0.5,
                        "at its scale: half of what came in, at least",
                    ),
                ),
                answer=(
                    f"It keeps the logits there, not the output: values of rms 1 leave with "
                    f"{number(mean(run['output'] for run in plain[short]))} over {short} keys and with "
                    f"{number(mean(outputs))} over {long}, as √(e / n) says."
                ),
            ),
            Claim(
                text="Multiplying the logits by ln n keeps attention equally sharp at every length.",
                heard="a common explanation of extrapolation to longer texts",
                comparisons=(
                    near(
                        f"H / ln n with ln n, {long} keys less {short}",
                        sharpened,
                        0.0,
                        0.05,
                        "equally sharp: the same share of the largest entropy",
                    ),
                ),
                answer=(
                    f"For independent logits it sharpens: H / ln n changes by {number(mean(sharpened))} from "
                    f"{short} to {long} keys, and with √ln n by {number(mean(held))}. A factor ln n suits one key "
                    "that stands apart from all the others."
                ),
            ),
            Claim(
                text="A factor √ln n keeps attention equally sharp at every length.",
                heard="follows from H ≈ ln n - s²/2",
                comparisons=(
                    near(f"H / ln n with √ln n, {long} keys less {short}", held, 0.0, 0.05, "the same share"),
                ),
                answer=(
                    f"As a share of ln n it does, within {number(abs(mean(held)))}; the largest weight falls from "
                    f"{mean(run['top'] for run in found['√ln n / √d_k'][short]):.3f} to "
                    f"{mean(run['top'] for run in found['√ln n / √d_k'][long]):.3f} all the same."
                ),
            ),
        )

    def _figure(self, found: Rows, title: str, y: Axis, measured: str, exact: str) -> Lines:
        return Lines(
            title=title,
            x=Axis(label="keys n", log=True),
            y=y,
            series=tuple(
                series
                for color, (name, rule) in enumerate(RULES.items())
                for series in beside(
                    name,
                    self.lengths,
                    [mean(run[measured] for run in runs) for runs in found[name].values()],
                    [getattr(expected_rows(rule(keys), keys), exact) for keys in self.lengths],
                    color,
                )
            ),
        )

    def _tops(self, found: Rows) -> Lines:
        lengths = tuple(map(float, self.lengths))
        return Lines(
            title="The largest weight",
            x=Axis(label="keys n", log=True),
            y=Axis(label="mean largest weight", log=True),
            series=tuple(
                Series(
                    name=name,
                    x=lengths,
                    y=tuple(mean(run["top"] for run in seeds) for seeds in runs.values()),
                    color=color,
                )
                for color, (name, runs) in enumerate(found.items())
            ),
        )

    def _table(self, found: Rows) -> Table:
        return Table(
            caption="Largest weight, H / ln n and rms of the output, mean over seeds",
            columns=("keys", *(f"{name}: {what}" for name in RULES for what in ("top", "H / ln n", "rms"))),
            rows=tuple(
                (
                    str(keys),
                    *(
                        number(mean(run[what] for run in found[name][keys]))
                        for name in RULES
                        for what in ("top", "entropy", "output")
                    ),
                )
                for keys in self.lengths
            ),
        )
