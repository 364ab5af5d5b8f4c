"""Which width makes unscaled scores grow: that of the head, or that of the model?"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, curves
from surd.lab.finding import Claim, Comparison, at_least, near, number
from surd.lab.samples import Sizes, mean, slopes
from surd.seed import generator

HEADS, D_K, STD = 8, 64, 0.02
FIXED_D_K = f"q·k, heads of width {D_K}"
FIXED_HEADS = f"q·k, {HEADS} heads of width d_model / {HEADS}"
FIXED_STD = f"q·k / √d_k, heads of width {D_K}, weights N(0, {STD})"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One way to make a model wider."""

    d_k: Callable[[int], int]
    """Width of a head."""
    std: Callable[[int], float]
    """Standard deviation of the projections' weights."""
    scale: Callable[[int], float]
    """Factor on q·k, of the head's width."""
    law: Callable[[float], float]
    """The standard deviation of a row's scores, of the model's width."""
    exponent: float
    """How it grows with the model's width."""


def _unit(d_model: int) -> float:
    """Weights that give queries and keys of variance 1."""
    return d_model**-0.5


SWEEPS = {
    FIXED_D_K: Sweep(d_k=lambda _: D_K, std=_unit, scale=lambda _: 1.0, law=lambda _: math.sqrt(D_K), exponent=0.0),
    FIXED_HEADS: Sweep(
        d_k=lambda width: width // HEADS,
        std=_unit,
        scale=lambda _: 1.0,
        law=lambda width: math.sqrt(width / HEADS),
        exponent=0.5,
    ),
    FIXED_STD: Sweep(
        d_k=lambda _: D_K,
        std=lambda _: STD,
        scale=lambda d_k: d_k**-0.5,
        law=lambda width: STD**2 * width,
        exponent=1.0,
    ),
}


@dataclass(frozen=True, kw_only=True)
class HeadWidthOrModelWidth(Experiment):
    """Makes a model wider in three ways and takes the spread of its attention scores at the start."""

    prediction: ClassVar[str] = (
        "The spread of unscaled scores is √d_k and knows nothing of d_model: where heads keep their width and grow in "
        "number, as in most models, it stays. It grows as √d_model only where the number of heads is kept. What "
        "does grow with d_model is the spread from weights of a fixed standard deviation w: w² d_model after 1/√d_k."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1; in its table 3 d_model goes from 512 to 1024 in the "
        "big model, with 16 heads instead of 8: d_k stays 64.",
        "q = x W with W of standard deviation w and x of rms 1 has standard deviation w √d_model.",
    )

    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    """Widths of the model."""
    tokens: int = 64
    """Tokens that attend to each other."""
    drawn: int = 16
    """Heads with weights of their own, for each width and seed."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {
            name: {width: [self._spread(sweep, width, seed) for seed in seeds] for width in self.widths}
            for name, sweep in SWEEPS.items()
        }
        return Findings(
            comparisons=tuple(self._laws(found)),
            claims=(self._larger_embeddings(found[FIXED_D_K], found[FIXED_HEADS]),),
            figures=(
                Lines(
                    title="Spread of the scores at the start, by the width of the model",
                    x=Axis(label="d_model", log=True),
                    y=Axis(label="standard deviation in a row", log=True),
                    series=curves(found, {name: sweep.law for name, sweep in SWEEPS.items()}),
                ),
            ),
        )

    def _spread(self, sweep: Sweep, width: int, seed: int) -> float:
        """The root of the mean variance within a row, over heads with weights of their own."""
        d_k, draw = sweep.d_k(width), generator(seed, self.name, sweep.exponent, width)
        variances = []
        for _ in range(self.drawn):
            x = torch.randn(self.tokens, width, generator=draw)
            query, key = (x @ (sweep.std(width) * torch.randn(width, d_k, generator=draw)) for _ in range(2))
            variances.append((sweep.scale(d_k) * query @ key.T).var(-1).mean().item())
        return math.sqrt(mean(variances))

    def _laws(self, found: Mapping[str, dict[int, list[float]]]) -> Iterator[Comparison]:
        wide = max(self.widths)
        source = "√d_k for unit queries and keys; weights of standard deviation w give w² d_model after 1/√d_k"
        for name, sweep in SWEEPS.items():
            law = sweep.law(wide)
            yield near(f"exponent of d_model, {name}", slopes(found[name]), sweep.exponent, 0.05, source)
            yield near(f"spread at d_model = {wide}, {name}", found[name][wide], law, law / 15, source)

    def _larger_embeddings(self, kept: Sizes, growing: Sizes) -> Claim:
        narrow, wide = min(self.widths), max(self.widths)
        growth = slopes(kept)
        return Claim(
            text="The saturation gets worse as models use larger embeddings.",
            heard="a common explanation",
            comparisons=(
                at_least(
                    "exponent of d_model in the spread of unscaled scores, head width kept",
                    growth,
                    0.25,
                    "growing at all: half of the √ that the explanation needs",
                ),
            ),
            answer=(
                f"From d_model = {narrow} to {wide} the spread goes from {number(mean(kept[narrow]))} to "
                f"{number(mean(kept[wide]))}: exponent {mean(growth):.3f}. It is the width of the head that counts, "
                "and models grow by more heads. Only where the number of heads is fixed is it true: "
                f"{number(mean(growing[narrow]))} to {number(mean(growing[wide]))}."
            ),
        )
