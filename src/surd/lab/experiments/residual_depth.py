"""How do the residual stream and its gradient grow with depth, before and after norms, with and without 1/√(2L)?"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, curves
from surd.lab.finding import Claim, Comparison, at_least, at_most, near, number
from surd.lab.samples import Statistics, each, growths, mean, ratios, rms, slopes
from surd.lab.stacks import BRANCH, POST, PRE, SHRUNK, STACKS
from surd.nn.mask import padding_mask
from surd.nn.ragged import Layout
from surd.nn.stack import Encoder
from surd.seed import generator

FORWARD = "branches are independent of the stream and of each other: squares add up"
BACKWARD = (
    "v forwards is v backwards, so each sum and its norm undo each other: the gradient at a stream of rms σ is 1/σ"
)
Found = dict[str, dict[int, list[Statistics]]]
"""For each kind of stack and number of layers, the statistics of each seed."""


@dataclass(frozen=True, kw_only=True)
class ResidualDepth(Experiment):
    """Runs fresh encoders of more and more layers forwards and backwards, on single tokens and on whole sequences."""

    prediction: ClassVar[str] = (
        "Each of 2L branches adds v² to the square of the stream: pre-norm it grows as √(1 + 2L v²), with the last "
        "matrix of each branch times 1/√(2L) it is √(1 + v²) at any depth, and post-norm it is 1. Backwards, a branch "
        "that reads a norm of a stream of rms σ adds v²/σ² to the square of the gradient, which so is 1/σ everywhere: "
        "largest at the input of a pre-norm stack, the same at all depths of a post-norm one. This is exact for "
        "sequences of one token, where attention only passes a value on."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "x ← x + f(norm(x)) with E f² = v²: σ² ← σ² + v²; backwards g² ← g² (1 + v²/σ²), the ratio of the two σ².",
        "x ← norm(x + f(x)): forwards and backwards the factor 1 + v² is divided out again.",
        "Xiong et al. 2020 (arXiv 2002.04745): bounds on the pre-norm stream, and gradients of the last layer.",
        "Radford et al. 2019 (GPT-2), section 2.3: 1/√(2L). Noci et al. 2022 (arXiv 2206.03126): tokens become alike.",
        "Takase et al. 2023 (arXiv 2312.16903): gradients by the size of the embedding, in pre-norm stacks.",
    )

    depths: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Layers, L."""
    d_model: int = 128
    """Width."""
    heads: int = 4
    """Of attention."""
    draws: int = 4
    """Stacks with weights of their own for each seed."""
    tokens: int = 64
    """Tokens of a batch."""
    length: int = 32
    """Tokens of a sequence, where there is more than one."""
    embeddings: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    """Rms of what enters a pre-norm stack."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        runs = {
            name: {depth: [self._run(name, depth, seed) for seed in seeds] for depth in self.depths} for name in STACKS
        }
        found, whole = (
            {
                name: {depth: [of_seed[length] for of_seed in per_seed] for depth, per_seed in by_depth.items()}
                for name, by_depth in runs.items()
            }
            for length in (1, self.length)
        )
        return Findings(
            comparisons=(*self._streams(found), *self._gradients(found), *self._entering(seeds)),
            claims=(self._keeps(found), self._shrunk(whole), self._vanish(found, whole), *self._xiong(whole)),
            figures=self._figures(found, whole),
            notes=(
                "Gradients are those of independent unit gradients behind the last norm.",
                f"In sequences of {self.length} tokens attention passes on what they share and averages the rest away: "
                "they become alike. No formula is claimed for them here.",
            ),
        )

    def _run(self, name: str, layers: int, seed: int) -> dict[int, Statistics]:
        """For single tokens and for sequences, the root of the mean of squares over several stacks."""
        draw = generator(seed, self.name, name, layers)
        stacks = [STACKS[name].build(layers, self.d_model, self.heads, draw) for _ in range(self.draws)]
        return {length: self._mean(stacks, length, 1.0, draw) for length in (1, self.length)}

    def _mean(self, stacks: Sequence[Encoder], length: int, size: float, draw: torch.Generator) -> Statistics:
        found = [self._once(stack, length, size, draw) for stack in stacks]
        return {what: math.sqrt(mean(one[what] ** 2 for one in found)) for what in found[0]}

    def _once(self, encoder: Encoder, length: int, size: float, draw: torch.Generator) -> Statistics:
        """Rms of the stream behind all layers, and of the gradient at the input, half-way, and at the last matrix."""
        layout = Layout((length,) * (self.tokens // length), torch.device("cpu"))
        stream = [(size * torch.randn(self.tokens, self.d_model, generator=draw)).requires_grad_()]
        mask = padding_mask(layout, torch.float32)
        for layer in encoder.layers:
            stream.append(layer(stream[-1], layout, mask))
        out, weight = (
            encoder.norm(stream[-1]),
            encoder.get_parameter(f"layers.{len(stream) - 2}.feedforward.outer.weight"),
        )
        wanted = [stream[0], stream[len(stream) // 2], weight]
        into, half, last = torch.autograd.grad(out, wanted, torch.randn(out.shape, generator=draw))
        return {"size": rms(stream[-1]), "into": rms(into), "half": rms(half), "last": rms(last)}

    def _streams(self, found: Found) -> Iterator[Comparison]:
        for name, runs in found.items():
            for depth, seeds in runs.items():
                law = STACKS[name].size(depth)
                yield near(f"rms of the stream, {name}, {depth} layers", each(seeds, "size"), law, 0.07 * law, FORWARD)

    def _gradients(self, found: Found) -> Iterator[Comparison]:
        for name, runs in found.items():
            for depth, seeds in runs.items():
                yield near(
                    f"gradient at the input, {name}, {depth} layers", each(seeds, "into"), 1.0, room(depth), BACKWARD
                )
            deep, half = runs[self.depths[-1]], 1 / STACKS[name].size(self.depths[-1] / 2)
            if name != SHRUNK:  # whose σ half-way is not that of a shorter stack
                yield near(
                    f"gradient half-way, {name}, {self.depths[-1]} layers",
                    each(deep, "half"),
                    half,
                    0.12 * half,
                    BACKWARD,
                )
        for depth in self.depths:
            law = math.sqrt(1 + BRANCH) / STACKS[PRE].size(depth)
            values = ratios(*(each(found[name][depth], "last") for name in (PRE, POST)))
            name = f"gradient of the last matrix, pre-norm over post-norm, {depth} layers"
            yield near(name, values, law, 0.1 * law, "√(1 + v²) / σ: divided by the size of the stream")

    def _entering(self, seeds: Sequence[int]) -> Iterator[Comparison]:
        found: dict[float, list[float]] = {size: [] for size in self.embeddings}
        for seed in seeds:
            draw = generator(seed, self.name, "entering")
            stacks = [STACKS[PRE].build(4, self.d_model, self.heads, draw) for _ in range(self.draws)]
            for size in self.embeddings:
                found[size].append(self._mean(stacks, 1, size, draw)["into"])
        for size, values in found.items():
            name = f"gradient at the input, pre-norm, 4 layers, embeddings of rms {size:g}"
            yield near(name, values, 1 / size, 0.15 / size, "1/σ at the input as everywhere")

    def _keeps(self, found: Found) -> Claim:
        deep = self.depths[-1]
        sizes = each(found[PRE][deep], "size")
        return Claim(
            text="With a norm before each sub-layer, the stream stays at its size.",
            heard="a common explanation",
            comparisons=(
                at_most(f"rms of the stream behind {deep} pre-norm layers", sizes, 2.0, "at its size, within 2"),
            ),
            answer=(
                f"What enters the branches does; the stream itself grows to {number(mean(sizes))}, as √(1 + 2L v²) "
                "says, and so later branches, and steps of later layers, count for less."
            ),
        )

    def _shrunk(self, whole: Found) -> Claim:
        by_depth = {depth: each(seeds, "size") for depth, seeds in whole[SHRUNK].items()}
        growth, without = (
            growths(by_depth),
            growths({depth: each(seeds, "size") for depth, seeds in whole[PRE].items()}),
        )
        return Claim(
            text="The factor 1/√(2L) on each branch makes the size of a stack's output independent of its depth.",
            heard="Radford et al. 2019 (GPT-2), section 2.3",
            comparisons=(
                near(
                    f"rms of the stream, {self.depths[-1]} layers over {self.depths[0]}, {self.length} tokens",
                    growth,
                    1.0,
                    0.1,
                    "independent",
                ),
            ),
            answer=f"It grows {number(mean(growth))}-fold; without the factor {number(mean(without))}-fold.",
        )

    def _vanish(self, found: Found, whole: Found) -> Claim:
        deep = self.depths[-1]
        single, many = (each(runs[POST][deep], "into") for runs in (found, whole))
        return Claim(
            text="In deep post-norm stacks the gradient vanishes on its way to the first layers.",
            heard="a common explanation of why they need a warm-up",
            comparisons=(
                at_most(
                    f"gradient at the input of {deep} post-norm layers, one token", single, 0.1, "a tenth of it is left"
                ),
                at_most(f"the same, {self.length} tokens", many, 0.1, "the same"),
            ),
            answer=(
                f"Not by the norms: with one token a sequence {number(mean(single))} of it arrives. With {self.length} "
                f"tokens it is {number(mean(many))}: forwards attention adds what they share, and the norm divides by "
                "it; backwards their separate gradients average away. At the start that is a loss, no vanishing."
            ),
        )

    def _xiong(self, whole: Found) -> Iterator[Claim]:
        deep = self.depths[-1]
        squares = [size**2 for size in each(whole[PRE][deep], "size")]
        last = {
            depth: ratios(*(each(whole[name][depth], "last") for name in (PRE, POST)))
            for depth in self.depths[self.depths.index(4) :]
        }
        exponents = slopes(last)
        yield Claim(
            text="The mean square of a pre-norm stream behind L layers lies between 1 + L/2 and 1 + 3L/2.",
            heard="Xiong et al. 2020, lemma 2",
            comparisons=(
                at_least(f"mean square behind {deep} layers, {self.length} tokens", squares, 1 + deep / 2, "1 + L/2"),
                at_most("the same", squares, 1 + 3 * deep / 2, "1 + 3L/2"),
            ),
            answer=f"It is {number(mean(squares))}, with Glorot's rule and scores of standard deviation ½.",
        )
        yield Claim(
            text="A pre-norm stack's last layer gets gradients √L times smaller than a post-norm stack's.",
            heard="Xiong et al. 2020, theorem 1",
            comparisons=(
                near(
                    "exponent of L in the ratio of the last matrix's gradients",
                    exponents,
                    -0.5,
                    0.15,
                    "L^-½ for large L",
                ),
            ),
            answer=f"The exponent is {mean(exponents):.2f} from {min(last)} to {deep} layers of {self.length} tokens.",
        )

    def _figures(self, found: Found, whole: Found) -> tuple[Lines, ...]:
        def lines(title: str, what: str, runs: Found, laws: dict[str, Callable[[float], float]]) -> Lines:
            measured = {
                name: {depth: each(seeds, what) for depth, seeds in by_depth.items()} for name, by_depth in runs.items()
            }
            y = Axis(label="rms of the stream" if what == "size" else "rms of the gradient", log=True)
            return Lines(title=title, x=Axis(label="layers L", log=True), y=y, series=curves(measured, laws))

        many = f"sequences of {self.length} tokens"
        return (
            lines("Size of the stream, one token", "size", found, {name: stack.size for name, stack in STACKS.items()}),
            lines(f"Size of the stream, {many}", "size", whole, {}),
            lines("Gradient at the input, one token", "into", found, {name: lambda _: 1.0 for name in STACKS}),
            lines(f"Gradient at the input, {many}", "into", whole, {}),
        )


def room(layers: int) -> float:
    """By how much a mean over a few stacks may stray: products of random matrices spread with their number."""
    return 0.06 + 0.012 * layers
