"""What happens to attention in longer rows, which 1/√d_k does not know of?"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, curves
from surd.lab.finding import Claim, Comparison, at_least, near, number
from surd.lab.samples import Statistics, average, differences, each, mean
from surd.lab.softmax import INTEGRAL, entropy, expected_top, normal
from surd.measure.softmax.gaussian import GaussianRows, expected_rows
from surd.nn.scale import InverseRoot, LogLength
from surd.seed import generator

PLAIN, LOG, ROOT = "1/√d_k", "ln n / √d_k", "√ln n / √d_k"
PLAIN_RULE, LOG_RULE = InverseRoot(), LogLength()
RULES: dict[str, Callable[[int], float]] = {
    PLAIN: lambda keys: PLAIN_RULE.at(keys),
    LOG: lambda keys: LOG_RULE.at(keys),
    ROOT: lambda keys: math.sqrt(LOG_RULE.at(keys)),
}
"""The standard deviation of the logits of unit queries and keys; the rules that know the length agree at 64 keys."""
Found = dict[str, dict[int, list[Statistics]]]
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
    """Numbers drawn for each seed, rule and length, or enough for 800 rows."""
    value_width: int = 32
    """Features of each value."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {
            name: {keys: [self._rows(name, keys, seed) for seed in seeds] for keys in self.lengths} for name in RULES
        }
        return Findings(
            comparisons=(*self._exact(found), *self._shrinking(found)),
            claims=(self._keeps_its_scale(found), self._log(found), self._root(found)),
            figures=(
                self._figure(found, "entropy", "Entropy", Axis(label="H / ln n"), _normalised_entropy),
                self._figure(found, "output", "Size of the output", Axis(label="rms", log=True), _output_rms),
                self._figure(found, "top", "The largest weight", Axis(label="mean of max p", log=True), _top),
            ),
            notes=(
                "Logits are independent here. A trained head that looks at one key separated from all others needs a "
                "gap that grows as ln n to hold its weight.",
            ),
        )

    def _rows(self, name: str, keys: int, seed: int) -> Statistics:
        draw = generator(seed, self.name, name, keys)
        logits = RULES[name](keys) * normal(max(800, self.logits // keys), keys, generator=draw)
        weights = logits.softmax(-1)
        # Fifty rows share their values, as queries do: values of its own for each row would take long to draw.
        shared = weights[: len(weights) // 50 * 50].unflatten(0, (-1, 50))
        mixed = shared @ normal(len(shared), keys, self.value_width, generator=draw)
        return {
            "entropy": entropy(logits).mean().item(),
            "output": mixed.square().mean().sqrt().item(),
            "top": weights.amax(-1).mean().item(),
        }

    def _exact(self, found: Found) -> Iterator[Comparison]:
        for name, runs in found.items():
            for keys, seeds in runs.items():
                exact, where = expected_rows(RULES[name](keys), keys), f"{name}, {keys} keys"
                size = exact.output_rms
                yield near(f"H / ln n at {where}", each(seeds, "entropy"), exact.normalised_entropy, 0.01, INTEGRAL)
                yield near(f"output rms at {where}", each(seeds, "output"), size, 0.06 * size, "√E Σ p², exact")

    def _shrinking(self, found: Found) -> Iterator[Comparison]:
        keys = max(self.lengths)
        law = math.sqrt(math.e / keys)
        sizes, name = each(found[PLAIN][keys], "output"), f"output rms at {PLAIN}, {keys} keys, by its limit"
        yield near(name, sizes, law, law * 0.06, "√(e/n) for many keys")

    def _change(self, found: Found, name: str) -> list[float]:
        """Of H / ln n, from the shortest rows to the longest."""
        return differences(*(each(found[name][keys], "entropy") for keys in (max(self.lengths), min(self.lengths))))

    def _keeps_its_scale(self, found: Found) -> Claim:
        short, long = min(self.lengths), max(self.lengths)
        outputs = each(found[PLAIN][long], "output")
        return Claim(
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
                f"{number(average(found[PLAIN][short], 'output'))} over {short} keys and with "
                f"{number(mean(outputs))} over {long}, as √(e / n) says."
            ),
        )

    def _log(self, found: Found) -> Claim:
        short, long = min(self.lengths), max(self.lengths)
        sharpened = self._change(found, LOG)
        return Claim(
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
                f"For independent logits it sharpens: H / ln n changes by {mean(sharpened):.3f} from "
                f"{short} to {long} keys, and with √ln n by {mean(self._change(found, ROOT)):.3f}. A factor ln n suits "
                "one key that stands apart from all the others."
            ),
        )

    def _root(self, found: Found) -> Claim:
        short, long = min(self.lengths), max(self.lengths)
        held = self._change(found, ROOT)
        return Claim(
            text="A factor √ln n keeps attention equally sharp at every length.",
            heard="follows from H ≈ ln n - s²/2",
            comparisons=(near(f"H / ln n with √ln n, {long} keys less {short}", held, 0.0, 0.05, "the same share"),),
            answer=(
                f"As a share of ln n it does, within {abs(mean(held)):.3f}; the largest weight falls from "
                f"{average(found[ROOT][short], 'top'):.3f} to {average(found[ROOT][long], 'top'):.3f} all the same."
            ),
        )

    def _figure(self, found: Found, what: str, title: str, y: Axis, exact: Callable[[GaussianRows], float]) -> Lines:
        return Lines(
            title=title,
            x=Axis(label="keys n", log=True),
            y=y,
            series=curves(
                {name: {keys: each(seeds, what) for keys, seeds in runs.items()} for name, runs in found.items()},
                {name: lambda n, rule=rule: exact(expected_rows(rule(int(n)), int(n))) for name, rule in RULES.items()},
            ),
        )


def _normalised_entropy(rows: GaussianRows) -> float:
    return rows.normalised_entropy


def _output_rms(rows: GaussianRows) -> float:
    return rows.output_rms


def _top(rows: GaussianRows) -> float:
    return expected_top(rows.std, rows.keys)
