"""How does the size of q·k grow with the width of a head, and what does dividing by √d_k change?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Law, Lines, curves
from surd.lab.finding import Claim, Comparison, at_least, near, number
from surd.lab.samples import growths, mean, rms, slopes
from surd.measure.moments import normal_mean
from surd.seed import generator

FOOTNOTE = "a sum of d_k independent terms of mean 0 and variance 1 has variance d_k"
RAW, SCALED, INVERSE, ADDITIVE = "q·k", "q·k / √d_k", "q·k / d_k", "additive"
Sizes = dict[int, list[float]]
"""For each width, one value a seed."""


@dataclass(frozen=True, kw_only=True)
class DotProductGrowth(Experiment):
    """Draws queries and keys, independent, aligned, or otherwise related, and takes the size of their scores."""

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
    pairs: int = 6_000
    """Pairs of query and key for each width and seed."""
    alignments: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0)
    """How much of the query is the key."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        stds: dict[str, Sizes] = {name: {width: [] for width in self.widths} for name in LAWS}
        means: dict[float, Sizes] = {a: {width: [] for width in self.widths} for a in self.alignments}
        sizes: dict[float, Sizes] = {a: {width: [] for width in self.widths} for a in self.alignments}
        for width in self.widths:
            for seed in seeds:
                draw = generator(seed, self.name, width)
                query, key, vector = (torch.randn(self.pairs, width, generator=draw) for _ in range(3))
                product, square = (query * key).sum(-1), key.square().sum(-1)
                additive = (vector * (query + key).tanh()).sum(-1) / math.sqrt(width)
                for name, score in zip(LAWS, (product, product / width**0.5, product / width, additive), strict=True):
                    stds[name][width].append(score.std().item())
                for a in self.alignments:  # the query a k + √(1-a²) q
                    aligned = a * square + math.sqrt(1 - a**2) * product
                    means[a][width].append(aligned.mean().item())
                    sizes[a][width].append(rms(aligned))
        return Findings(
            comparisons=(*self._laws(stds), *self._alignment(means), *self._conditions(seeds)),
            claims=(*self._claims(stds), self._terms(sizes)),
            figures=self._figures(stds, sizes),
            notes=(
                "What is measured is the size of scores at random queries and keys, not the quality of trained models.",
            ),
        )

    def _laws(self, stds: dict[str, Sizes]) -> Iterator[Comparison]:
        """How the size of each score grows, and what it is."""
        narrow, bounded = min(self.widths), "√E tanh²(√2 z), an integral over one Gaussian, whatever d_k"
        for name, exponent in ((RAW, 0.5), (SCALED, 0.0), (INVERSE, -0.5), (ADDITIVE, 0.0)):
            source = bounded if name == ADDITIVE else FOOTNOTE
            yield near(f"exponent of d_k in the std of {name}", slopes(stds[name]), exponent, 0.03, source)
        for width, found in stds[SCALED].items():
            yield near(f"std of {SCALED} at d_k = {width}", found, 1.0, 0.03, FOOTNOTE)
        yield near(
            f"std of the additive score at d_k = {narrow}", stds[ADDITIVE][narrow], additive_std(), 0.03, bounded
        )

    def _alignment(self, means: dict[float, Sizes]) -> Iterator[Comparison]:
        wide = max(self.widths)
        for a, found in means.items():
            shares = [value / wide for value in found[wide]]
            yield near(f"mean of q·k / d_k at alignment {a:g}, d_k = {wide}", shares, a, 0.01, "q = a k + √(1-a²) ε")

    def _conditions(self, seeds: Sequence[int]) -> Iterator[Comparison]:
        """What of the footnote's assumptions the variance needs."""
        width, shift, alike = 64, 0.5, 0.3
        found: dict[str, list[float]] = {name: [] for name in ("signs", "shifted", "correlated")}
        for seed in seeds:
            draw = generator(seed, self.name, "conditions")
            query, key = (torch.randn(3 * self.pairs, width, generator=draw) for _ in range(2))
            found["signs"].append((query.sign() * key.sign()).sum(-1).var().item() / width)
            found["shifted"].append(((query + shift) * (key + shift)).sum(-1).mean().item() / width)
            query, key = (
                math.sqrt(1 - alike) * own + math.sqrt(alike) * torch.randn(len(own), 1, generator=draw)
                for own in (query, key)
            )
            found["correlated"].append((query * key).sum(-1).var().item() / width)
        where = f"d_k = {width}"
        yield near(f"variance of q·k, over d_k, components ±1, {where}", found["signs"], 1.0, 0.04, FOOTNOTE)
        yield near(
            f"mean of q·k, over d_k, components of mean {shift}, {where}", found["shifted"], shift**2, 0.02, "μ², not 0"
        )
        yield near(
            f"variance of q·k, over d_k, components with correlation {alike}, {where}",
            found["correlated"],
            1 + (width - 1) * alike**2,
            0.5,
            "1 + (d_k - 1) ρ²: they are not independent",
        )

    def _claims(self, stds: dict[str, Sizes]) -> Iterator[Claim]:
        narrow, wide = min(self.widths), max(self.widths)
        product, additive = growths(stds[RAW]), growths(stds[ADDITIVE])
        yield Claim(
            text="If the components of q and k are independent with mean 0 and variance 1, q·k has variance d_k.",
            heard="Vaswani et al. 2017, footnote to section 3.2.1",
            comparisons=tuple(
                near(f"variance of q·k, over d_k, at d_k = {width}", squares, 1.0, 0.06, "the footnote")
                for width, found in stds[RAW].items()
                for squares in [[std**2 / width for std in found]]
            ),
            answer="It holds at every width and for any distribution; independence and mean 0 it does need.",
        )
        yield Claim(
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
        )

    def _terms(self, sizes: dict[float, Sizes]) -> Claim:
        wide, some = max(self.widths), self.alignments[-2]
        larger = [size / math.sqrt(wide) for size in sizes[some][wide]]
        return Claim(
            text="q·k is larger in a wide head only because it has more terms.",
            heard="a common explanation",
            comparisons=(
                near(
                    f"rms of q·k over √d_k at alignment {some:g}, d_k = {wide}",
                    larger,
                    1.0,
                    0.1,
                    "were the number of terms all that counts, alignment would change nothing",
                ),
            ),
            answer=(
                f"How the terms relate counts as much: at alignment {some:g} the product is {number(mean(larger))} "
                f"times as large at d_k = {wide} (predicted {number(aligned_rms(some, wide) / math.sqrt(wide))}). "
                "Independent terms add up as √d_k, aligned ones as d_k, so 1/√d_k is right for queries and keys "
                "that know nothing of each other: at the start."
            ),
        )

    def _figures(self, stds: dict[str, Sizes], sizes: dict[float, Sizes]) -> tuple[Lines, ...]:
        across = Axis(label="d_k", log=True)
        return (
            Lines(
                title="Standard deviation of a score by the width of the head",
                x=across,
                y=Axis(label="standard deviation", log=True),
                series=curves(stds, LAWS),
            ),
            Lines(
                title="Size of q·k where the query contains the key",
                x=across,
                y=Axis(label="rms of q·k", log=True),
                series=curves(
                    {f"alignment {a:g}": found for a, found in sizes.items()},
                    {f"alignment {a:g}": partial(aligned_rms, a) for a in sizes},
                ),
            ),
        )


def additive_std() -> float:
    """√E tanh²(√2 z) for z ~ N(0, 1): the additive score of unit components, whatever their number."""
    return normal_mean(lambda z: z.tanh().square(), math.sqrt(2)) ** 0.5


def aligned_rms(alignment: float, width: float) -> float:
    """√E (q·k)² for q = a k + √(1-a²) ε."""
    return math.sqrt(alignment**2 * width * (width + 2) + (1 - alignment**2) * width)


LAWS: dict[str, Law] = {
    RAW: math.sqrt,
    SCALED: lambda width: 1.0,
    INVERSE: lambda width: width**-0.5,
    ADDITIVE: lambda width: additive_std(),
}
"""The standard deviation of each score."""
