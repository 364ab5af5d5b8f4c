"""How does the size of q·k grow with the width of a head, and what does dividing by √d_k change?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, beside
from surd.lab.finding import Claim, Comparison, Table, at_least, mean, near, number
from surd.lab.growth import growths, slopes
from surd.seed import generator

FOOTNOTE = "a sum of d_k independent terms of mean 0 and variance 1 has variance d_k"
Sizes = dict[str, dict[int, list[float]]]
"""For each kind of score and each width, one standard deviation a seed."""
ALIGNED = "q = a k + √(1-a²) ε: E q·k = a d_k, E (q·k)² = a² d_k (d_k + 2) + (1 - a²) d_k"


@dataclass(frozen=True, kw_only=True)
class DotProductGrowth(Experiment):
    """Draws queries and keys of unit components, independent or aligned, and takes the size of four scores."""

    prediction: ClassVar[str] = (
        "For independent components of mean 0 and variance 1, q·k has standard deviation √d_k; times 1/√d_k it is 1 at "
        "every width, times 1/d_k it falls as 1/√d_k, and an additive score does not depend on the width. For aligned "
        "queries and keys it is the mean that grows, and it grows with d_k itself."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1 and its footnote: the variance of q·k.",
        "Bahdanau, Cho & Bengio 2015 (arXiv 1409.0473): additive scores. "
        "Britz et al. 2017 (arXiv 1703.03906): both compared over widths.",
        "Yang et al. 2022 (arXiv 2203.03466): 1/d_k for queries and keys that training has aligned.",
    )

    widths: tuple[int, ...] = (4, 16, 64, 256, 1024)
    """Widths of a head."""
    pairs: int = 20_000
    """Pairs of query and key for each width and seed."""
    alignments: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0)
    """How much of the query is the key."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        independent = {width: [self._scores(width, seed) for seed in seeds] for width in self.widths}
        aligned = {
            (a, width): [self._aligned(a, width, seed) for seed in seeds]
            for a in self.alignments
            for width in self.widths
        }
        stds = {
            name: {width: [scores[name].std().item() for scores in runs] for width, runs in independent.items()}
            for name in KINDS
        }
        return Findings(
            comparisons=(*self._laws(stds, independent), *self._alignment(aligned)),
            claims=self._claims(stds, aligned),
            figures=(self._growth(stds), self._means(aligned)),
            tables=(self._table(stds),),
            notes=(
                "What is measured is the size of scores at random queries and keys, not the quality of trained models.",
            ),
        )

    def _scores(self, width: int, seed: int) -> dict[str, Tensor]:
        """Each kind of score for independent pairs; the additive one with a vector of its own for each pair."""
        draw = generator(seed, self.name, width)
        query, key, vector = (torch.randn(self.pairs, width, generator=draw) for _ in range(3))
        dot = (query * key).sum(-1)
        additive = (vector * (query + key).tanh()).sum(-1) / math.sqrt(width)
        return {"q·k": dot, "q·k / √d_k": dot / math.sqrt(width), "q·k / d_k": dot / width, "additive": additive}

    def _aligned(self, alignment: float, width: int, seed: int) -> Tensor:
        draw = generator(seed, self.name, "aligned", alignment, width)
        key, noise = (torch.randn(self.pairs, width, generator=draw) for _ in range(2))
        return ((alignment * key + math.sqrt(1 - alignment**2) * noise) * key).sum(-1)

    def _laws(self, stds: Sizes, runs: dict[int, list[dict[str, Tensor]]]) -> list[Comparison]:
        """How the size of each score grows, and what it is."""
        narrow, bounded = min(self.widths), "each of d_k bounded terms has variance E tanh² / d_k"
        return [
            *(
                near(f"exponent of d_k in the std of {name}", slopes(stds[name]), exponent, 0.03, source)
                for name, (exponent, _) in KINDS.items()
                for source in [bounded if name == "additive" else FOOTNOTE]
            ),
            *(
                near(f"std of q·k / √d_k at d_k = {width}", found, 1.0, 0.03, FOOTNOTE)
                for width, found in stds["q·k / √d_k"].items()
            ),
            near(
                f"kurtosis of q·k at d_k = {narrow}",
                [kurtosis(scores["q·k"]) for scores in runs[narrow]],
                3 + 6 / narrow,
                0.4,
                "3 + 6/d_k for Gaussian components: not yet a Gaussian where the head is narrow",
            ),
            near(
                f"std of the additive score at d_k = {narrow}",
                stds["additive"][narrow],
                additive_std(),
                0.03,
                "√E tanh²(√2 z), an integral over one Gaussian",
            ),
        ]

    def _alignment(self, aligned: dict[tuple[float, int], list[Tensor]]) -> list[Comparison]:
        wide = max(self.widths)
        return [
            near(
                f"mean of q·k / d_k at alignment {a:g}, d_k = {wide}",
                [scores.mean().item() / wide for scores in aligned[a, wide]],
                a,
                0.01,
                ALIGNED,
            )
            for a in self.alignments
        ]

    def _claims(self, stds: Sizes, aligned: dict[tuple[float, int], list[Tensor]]) -> tuple[Claim, ...]:
        narrow, wide, some = min(self.widths), max(self.widths), self.alignments[-2]
        ratios = [rms(scores) / math.sqrt(wide) for scores in aligned[some, wide]]
        product, additive = growths(stds["q·k"]), growths(stds["additive"])
        return (
            Claim(
                text="If the components of q and k are independent with mean 0 and variance 1, q·k has variance d_k.",
                heard="Vaswani et al. 2017, footnote to section 3.2.1",
                comparisons=tuple(
                    near(f"variance of q·k, over d_k, at d_k = {width}", squares, 1.0, 0.05, "the footnote")
                    for width, found in stds["q·k"].items()
                    for squares in [[std**2 / width for std in found]]
                ),
                answer="It holds at every width, and for any distribution with these two moments.",
            ),
            Claim(
                text="q·k is larger in a wide head only because it has more terms.",
                heard="a common explanation",
                comparisons=(
                    near(
                        f"rms of q·k over √d_k at alignment {some:g}, d_k = {wide}",
                        ratios,
                        1.0,
                        0.1,
                        "were the number of terms all that counts, alignment would change nothing",
                    ),
                ),
                answer=(
                    f"How the terms relate counts as much: at alignment {some:g} the product is {number(mean(ratios))} "
                    f"times as large at d_k = {wide} (predicted {number(math.sqrt(1 + some**2 * (wide + 1)))}). "
                    "Independent terms add up as √d_k, aligned ones as d_k, so 1/√d_k is right for queries and keys "
                    "that know nothing of each other: at the start."
                ),
            ),
            Claim(
                text="Additive and dot-product attention do alike in narrow heads; the product loses in wide ones.",
                heard="Vaswani et al. 2017, section 3.2.1, of products without a scale",
                comparisons=(
                    at_least(
                        f"std of q·k at d_k = {wide} over that at {narrow}",
                        product,
                        2.0,
                        "a cause that lies in the size of the scores needs products that grow …",
                    ),
                    near(
                        f"std of the additive score at d_k = {wide} over that at {narrow}",
                        additive,
                        1.0,
                        0.05,
                        "… and additive scores that do not",
                    ),
                ),
                answer=(
                    f"The sizes behave as this explanation needs: the product grows {number(mean(product))}-fold, the "
                    f"additive score {number(mean(additive))}-fold. That models become worse by it is a matter of "
                    "training, which is not measured here."
                ),
            ),
        )

    def _growth(self, stds: Sizes) -> Lines:
        return Lines(
            title="Standard deviation of a score by the width of the head",
            x=Axis(label="d_k", log=True),
            y=Axis(label="standard deviation", log=True),
            series=tuple(
                series
                for color, (name, (_, law)) in enumerate(KINDS.items())
                for series in beside(name, self.widths, map(mean, stds[name].values()), map(law, self.widths), color)
            ),
        )

    def _means(self, aligned: dict[tuple[float, int], list[Tensor]]) -> Lines:
        def found(a: float) -> list[float]:
            return [mean(map(rms, aligned[a, width])) for width in self.widths]

        def exact(a: float) -> list[float]:
            return [math.sqrt(a**2 * width * (width + 2) + (1 - a**2) * width) for width in self.widths]

        return Lines(
            title="Size of q·k where the query contains the key",
            x=Axis(label="d_k", log=True),
            y=Axis(label="rms of q·k", log=True),
            series=tuple(
                series
                for color, a in enumerate(self.alignments)
                for series in beside(f"alignment {a:g}", self.widths, found(a), exact(a), color)
            ),
        )

    def _table(self, stds: Sizes) -> Table:
        return Table(
            caption="Standard deviation of each score, mean over seeds",
            columns=("d_k", *KINDS),
            rows=tuple((str(width), *(number(mean(stds[name][width])) for name in KINDS)) for width in self.widths),
        )


def additive_std() -> float:
    """√E tanh²(√2 z) for z ~ N(0, 1): the additive score of unit components, whatever their number."""
    z = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    return float(((math.sqrt(2) * z).tanh().square() * density).sum() / density.sum()) ** 0.5


KINDS: dict[str, tuple[float, Callable[[float], float]]] = {
    "q·k": (0.5, math.sqrt),
    "q·k / √d_k": (0.0, lambda width: 1.0),
    "q·k / d_k": (-0.5, lambda width: width**-0.5),
    "additive": (0.0, lambda width: additive_std()),
}
"""Scores with the exponent of d_k in their standard deviation, and with the standard deviation itself."""


def rms(x: Tensor) -> float:
    """The root of the mean square."""
    return x.square().mean().sqrt().item()


def kurtosis(x: Tensor) -> float:
    """The fourth moment over the square of the second: 3 for a Gaussian."""
    centred = (x - x.mean()).double()
    return (centred.pow(4).mean() / centred.square().mean() ** 2).item()
