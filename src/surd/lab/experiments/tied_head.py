"""If one table is both embedding and pre-softmax projection, which size does it need on each side?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Figure, Lines, Rows, Series, curves, marks
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, near, number
from surd.lab.samples import Statistics, average, each, mean, rms
from surd.lab.ties import PAPER, PLAIN, T5, ties
from surd.measure.softmax.gaussian import expected_rows
from surd.seed import generator

GAUSSIAN = "E ln Σ exp of independent Gaussian logits, exact integral, less ln V"
OWN = "√d cos, with cos = 1 / √(1 + r²) where the blocks add r times the embedding"
Found = dict[str, list[Statistics]]
"""For each tie, the statistics of each seed."""
Copies = dict[tuple[int, float], list[Statistics]]
"""For each width, and each r of what blocks add, the statistics of each seed."""


@dataclass(frozen=True, kw_only=True)
class TiedHead(Experiment):
    """Takes sizes and first loss of tied tables, with states that know nothing of their input and with some that do."""

    prediction: ClassVar[str] = (
        "For a table of standard deviation s, a factor a on its rows and b on the logits, embeddings have rms a s and "
        "logits b s √d: both are 1 for N(0, 1/√d) with a = √d, and for its mirror image, N(0, 1) with b = 1/√d. Logits "
        "of standard deviation σ cost σ²/2 nats above ln V while σ is below 2. But where the state still points along "
        "the embedding, the input's own logit is √d cos, and a fresh model copies its input."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.4; Press & Wolf 2017 (arXiv 1608.05859): the shared table.",
        "Raffel et al. 2020 (arXiv 1910.10683): T5, with a table of N(0, 1) and logits times 1/√d where it is tied.",
        "E ln Σ exp z ≈ ln V + σ²/2 for V independent logits of variance σ², exactly by an integral.",
        "dW = a Sᵀ g + b δᵀ h: the table's gradient from the input side and from the output side.",
    )

    d_model: int = 512
    """Width for the comparison of ties."""
    vocabulary: int = 10_000
    """Rows of the table."""
    states: int = 128
    """States for each seed."""
    spreads: tuple[float, ...] = (0.25, 0.45, 0.65, 1, 2, 4, 8, 22.6)
    """Standard deviations of the logits for the first loss."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Widths for the copying of the input."""
    added: tuple[float, ...] = (0, 0.5, 1, 2, 4)
    """What the blocks of a pre-norm stack add to the embedding, in units of its rms."""
    sublayers: tuple[int, ...] = (0, 2, 4, 6)
    """Sub-layers of a post-norm stack, each adding as much as it finds."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        sizes = [self._sizes(seed) for seed in seeds]
        found = {name: [of_seed[name] for of_seed in sizes] for name in ties(self.d_model)}
        losses = [self._losses(seed) for seed in seeds]
        copies = {(d, r): [self._copy(d, r, seed) for seed in seeds] for d in self.widths for r in self.added}
        return Findings(
            comparisons=(
                *self._tied(found),
                *self._excess(losses),
                *self._mirrored(seeds),
                *self._copied(copies),
                *self._after_norms(seeds),
            ),
            claims=(*self._of_sizes(found), self._starts_well(copies)),
            figures=tuple(self._figures(found, losses, copies)),
            tables=(self._table(copies),),
            notes=(
                "The two mirror images compute the same and differ in training: the gradient of the larger table is √d "
                "times smaller, and a step of Adam, the same for both, is √d times smaller against its weights.",
                "Losses are means over all targets: those of a model that has not learnt, in nats above ln V.",
            ),
        )

    def _draw(self, d_model: int, seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
        """Unit table, input tokens, and the stream that goes on."""
        draw = generator(seed, self.name, d_model)
        unit = torch.randn(self.vocabulary, d_model, generator=draw)
        return unit, torch.randint(self.vocabulary, (self.states,), generator=draw), draw

    def _sizes(self, seed: int) -> dict[str, Statistics]:
        unit, inputs, draw = self._draw(self.d_model, seed)
        state = torch.randn(self.states, self.d_model, generator=draw)
        products, found = state @ unit.T, {}
        for name, tie in ties(self.d_model).items():
            logits = tie.out * tie.std * products
            found[name] = {
                "embedding": rms(tie.into * tie.std * unit[inputs]),
                "logits": logits.std(-1).mean().item(),
                "excess": excess(logits),
            }
        return found

    def _losses(self, seed: int) -> list[float]:
        """The first loss above ln V by the spread of the logits."""
        unit, _, draw = self._draw(self.d_model, seed)
        logits = torch.randn(self.states, self.d_model, generator=draw) @ unit.T / math.sqrt(self.d_model)
        return [excess(spread * logits) for spread in self.spreads]

    def _copy(self, d_model: int, added: float, seed: int) -> Statistics:
        """A state that is the embedding plus `added` times as much of something else, normalised."""
        unit, inputs, draw = self._draw(d_model, seed)
        state = F.layer_norm(unit[inputs] + added * torch.randn(self.states, d_model, generator=draw), [d_model])
        logits = state @ unit.T / math.sqrt(d_model)
        return {"own": logits.gather(1, inputs[:, None]).mean().item(), "excess": excess(logits)}

    def _tied(self, found: Found) -> Iterator[Comparison]:
        for name, tie in ties(self.d_model).items():
            into, out = tie.into * tie.std, tie.out * tie.std * math.sqrt(self.d_model)
            yield near(f"embedding rms, {name}", each(found[name], "embedding"), into, into / 20, "a s")
            yield near(f"std of the logits, {name}", each(found[name], "logits"), out, out / 20, "b s √d")

    def _excess(self, losses: list[list[float]]) -> Iterator[Comparison]:
        for spread, values in zip(self.spreads, zip(*losses, strict=True), strict=True):
            exact, name = self._exact(spread), f"first loss above ln V, logits of std {spread:g}"
            yield near(name, values, exact, 0.08 * exact, GAUSSIAN)

    def _exact(self, spread: float) -> float:
        return expected_rows(spread, self.vocabulary).log_partition - math.log(self.vocabulary)

    def _mirrored(self, seeds: Sequence[int]) -> Iterator[Comparison]:
        """The paper's tie and T5's, with the same table up to its size."""
        root, pairs = math.sqrt(self.d_model), [self._gradients(seed) for seed in seeds]
        yield near(
            "difference between the logits of the two mirror images, rms",
            [difference for difference, _ in pairs],
            0.0,
            1e-3,
            "only the products a s and b s count",
        )
        yield near(
            "gradient of the paper's table over that of T5's",
            [ratio for _, ratio in pairs],
            root,
            root / 100,
            "a table √d times as large with factors √d times as small",
        )

    def _gradients(self, seed: int) -> tuple[float, float]:
        unit, inputs, draw = self._draw(self.d_model, seed)
        targets = torch.randint(self.vocabulary, (self.states,), generator=draw)
        other, outs, sizes = torch.randn(self.states, self.d_model, generator=draw), [], []
        for name in (PAPER, T5):
            tie = ties(self.d_model)[name]
            table = (tie.std * unit).requires_grad_()
            logits = tie.out * F.layer_norm(tie.into * table[inputs] + other, [self.d_model]) @ table.T
            (gradient,) = torch.autograd.grad(F.cross_entropy(logits, targets), table)
            outs.append(logits.detach())
            sizes.append(rms(gradient))
        return rms(outs[0] - outs[1]), sizes[0] / sizes[1]

    def _copied(self, copies: Copies) -> Iterator[Comparison]:
        for (d_model, added), runs in copies.items():
            own, where = own_logit(d_model, added), f"d = {d_model}, blocks add {added:g}"
            loss = math.log(math.exp(own) + self.vocabulary * math.exp(0.5)) - math.log(self.vocabulary)
            yield near(f"own logit, {where}", each(runs, "own"), own, 0.03 * own + 0.1, OWN)
            yield near(f"first loss above ln V, {where}", each(runs, "excess"), loss, 0.15, "ln(e^own + V e^½) - ln V")

    def _after_norms(self, seeds: Sequence[int]) -> Iterator[Comparison]:
        for count in self.sublayers:
            expected, values = math.sqrt(self.d_model) * 2 ** (-count / 2), []
            for seed in seeds:
                unit, inputs, draw = self._draw(self.d_model, seed)
                state = unit[inputs]
                for _ in range(count):
                    state = F.layer_norm(state + torch.randn(state.shape, generator=draw), [self.d_model])
                values.append((state * unit[inputs]).sum(-1).mean().item() / math.sqrt(self.d_model))
            name, source = f"own logit after {count} post-norm sub-layers", "each halves the square of the cosine"
            yield near(name, values, expected, 0.05 * expected + 0.1, source)

    def _of_sizes(self, found: Found) -> Iterator[Claim]:
        plain, paper = found[PLAIN], found[PAPER]
        large, logits = each(plain, "excess"), each(plain, "logits")
        yield Claim(
            text="A state has entries near ±1, a logit adds d of them, so the shared table must be small.",
            heard="a common explanation",
            comparisons=(
                at_least(f"std of the logits, {PLAIN}", logits, 10.0, "far beyond 1"),
                at_least(f"first loss above ln V, {PLAIN}", large, 10.0, "nats lost to the size alone"),
            ),
            answer=(
                f"A table of N(0, 1) gives logits of std {number(mean(logits))} and a first loss {number(mean(large))} "
                "nats above ln V. A small table is one cure; a small factor on the logits is the other (T5)."
            ),
        )
        yield Claim(
            text="Because the shared table is small, its rows need the factor √d where they enter.",
            heard="a common explanation",
            comparisons=(
                near(f"embedding rms, {PAPER}", each(paper, "embedding"), 1.0, 0.1, "rms 1"),
                near(f"std of the logits, {PAPER}", each(paper, "logits"), 1.0, 0.1, "std 1"),
            ),
            answer="With N(0, 1/√d) it is this one factor that gives both sides size 1.",
        )

    def _starts_well(self, copies: Copies) -> Claim:
        narrow, wide = copies[min(self.widths), 1], copies[max(self.widths), 1]
        copied = each(wide, "excess")
        return Claim(
            text="Tied, of N(0, 1/√d) and times √d, a model starts near ln V.",
            heard="follows from the two, if states know nothing of their input",
            comparisons=(
                at_most(
                    f"first loss above ln V at d = {max(self.widths)}, blocks add as much as the embedding",
                    copied,
                    1.0,
                    "near ln V: within a nat (½ is expected of logits of std 1)",
                ),
            ),
            answer=(
                "In a pre-norm stack the state still points along its input, which then has a logit of "
                f"{number(average(wide, 'own'))} among others of std 1: the first loss is {number(mean(copied))} nats "
                f"above ln V at d = {max(self.widths)}, {number(average(narrow, 'excess'))} at d = {min(self.widths)}, "
                "where small tests hardly show it. A post-norm stack loses the direction by itself."
            ),
        )

    def _figures(self, found: Found, losses: list[list[float]], copies: Copies) -> Iterator[Figure]:
        names, all_ties, root = tuple(found), ties(self.d_model), math.sqrt(self.d_model)
        for title, what, law in (
            ("Size of an embedding", "embedding", {name: tie.into * tie.std for name, tie in all_ties.items()}),
            ("Spread of the logits", "logits", {name: tie.out * tie.std * root for name, tie in all_ties.items()}),
        ):
            yield Rows(
                title=f"{title}, by table and factors, d = {self.d_model}",
                names=names,
                x=Axis(label="rms" if what == "embedding" else "standard deviation", log=True),
                series=marks(what, names, {name: each(runs, what) for name, runs in found.items()}, law),
            )
        by_spread = dict(zip(self.spreads, zip(*losses, strict=True), strict=True))
        yield Lines(
            title="First loss above ln V by the spread σ of the logits",
            x=Axis(label="σ", log=True),
            y=Axis(label="nats", log=True),
            series=(
                *curves({"independent logits": by_spread}, {"independent logits": self._exact}),
                Series(name="σ²/2", x=self.spreads, y=tuple(s**2 / 2 for s in self.spreads), expected=True, color=1),
            ),
        )
        yield Lines(
            title="The logit of the input's own token",
            x=Axis(label="what the blocks add, over the embedding"),
            y=Axis(label="own logit"),
            series=curves(
                {f"d = {d}": {r: each(copies[d, r], "own") for r in self.added} for d in self.widths},
                {f"d = {d}": partial(own_logit, d) for d in self.widths},
            ),
        )

    def _table(self, copies: Copies) -> Table:
        return Table(
            caption=f"First loss above ln V of {PAPER}, by what the blocks add to the embedding",
            columns=("blocks add", *(f"d = {d}" for d in self.widths)),
            rows=tuple((f"{r:g}", *(number(average(copies[d, r], "excess")) for d in self.widths)) for r in self.added),
        )


def own_logit(d_model: float, added: float) -> float:
    """√d / √(1 + r²): what a row of N(0, 1/√d) gives for a state of rms 1 of which it is one part."""
    return math.sqrt(d_model / (1 + added**2))


def excess(logits: Tensor) -> float:
    """Cross-entropy above that of guessing evenly, mean over all targets that there could be."""
    return (logits.logsumexp(-1) - logits.mean(-1)).mean().item() - math.log(logits.shape[-1])
