"""If one table is both embedding and pre-softmax projection, which size does it need on each side?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, Series, beside
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, mean, near, number
from surd.lab.ties import PAPER, PLAIN, T5, Tie, ties
from surd.measure.gaussian import expected_rows
from surd.seed import generator

GAUSSIAN = "E ln Σ exp of independent Gaussian logits, exact integral, less ln V"
OWN = "√d cos, with cos = 1 / √(1 + r²) where the blocks add r times the embedding"
Found = dict[str, list[dict[str, float]]]
"""For each tie, the statistics of each seed."""
Copies = dict[tuple[int, float], list[dict[str, float]]]
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
    spreads: tuple[float, ...] = (0.25, 0.45, 0.65, 1, 2, 4, 8)
    """Standard deviations of the logits for the first loss."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Widths for the copying of the input."""
    added: tuple[float, ...] = (0, 0.5, 1, 2, 4)
    """What the blocks of a pre-norm stack add to the embedding, in units of its rms."""
    layers: tuple[int, ...] = (0, 2, 4, 6)
    """Sub-layers of a post-norm stack, each adding as much as it finds."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {name: [self._sizes(tie, seed) for seed in seeds] for name, tie in ties(self.d_model).items()}
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
            claims=self._claims(found, copies),
            figures=(self._loss_figure(losses), self._copy_figure(copies)),
            tables=(self._table(found), self._copy_table(copies)),
            notes=(
                "The two mirror images compute the same and differ in training: the gradient of the larger table is √d "
                "times smaller, and a step of Adam, the same for both, is √d times smaller against its weights.",
                "Losses are those of an untrained model on random targets, in nats above ln V.",
            ),
        )

    def _table_of(self, d_model: int, seed: int) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
        """Unit table, input tokens, targets, and the stream that goes on."""
        draw = generator(seed, self.name, d_model)
        unit = torch.randn(self.vocabulary, d_model, generator=draw)
        inputs, targets = (torch.randint(self.vocabulary, (self.states,), generator=draw) for _ in range(2))
        return unit, inputs, targets, draw

    def _sizes(self, tie: Tie, seed: int) -> dict[str, float]:
        unit, inputs, targets, draw = self._table_of(self.d_model, seed)
        state = torch.randn(self.states, self.d_model, generator=draw)
        logits = tie.out * tie.std * state @ unit.T
        return {
            "embedding": rms(tie.into * tie.std * unit[inputs]),
            "logits": logits.std(-1).mean().item(),
            "excess": excess(logits, targets),
        }

    def _losses(self, seed: int) -> list[float]:
        """The first loss above ln V by the spread of the logits."""
        unit, _, targets, draw = self._table_of(self.d_model, seed)
        logits = torch.randn(self.states, self.d_model, generator=draw) @ unit.T / math.sqrt(self.d_model)
        return [excess(spread * logits, targets) for spread in self.spreads]

    def _copy(self, d_model: int, added: float, seed: int) -> dict[str, float]:
        """A state that is the embedding plus `added` times as much of something else, normalised."""
        unit, inputs, targets, draw = self._table_of(d_model, seed)
        state = F.layer_norm(unit[inputs] + added * torch.randn(self.states, d_model, generator=draw), [d_model])
        logits = state @ unit.T / math.sqrt(d_model)
        return {"own": logits.gather(1, inputs[:, None]).mean().item(), "excess": excess(logits, targets)}

    def _tied(self, found: Found) -> list[Comparison]:
        comparisons, root = [], math.sqrt(self.d_model)
        for name, tie in ties(self.d_model).items():
            into, out = tie.into * tie.std, tie.out * tie.std * root
            sizes, spreads, losses = ([run[what] for run in found[name]] for what in ("embedding", "logits", "excess"))
            exact = expected_rows(out, self.vocabulary).log_partition - math.log(self.vocabulary)
            comparisons += [
                near(f"embedding rms, {name}", sizes, into, into / 20, "a s"),
                near(f"std of the logits, {name}", spreads, out, out / 20, "b s √d"),
                near(f"first loss above ln V, {name}", losses, exact, 0.05 * exact + 0.25 * out, GAUSSIAN),
            ]
        return comparisons

    def _excess(self, losses: list[list[float]]) -> list[Comparison]:
        comparisons = []
        for index, spread in enumerate(self.spreads):
            if spread <= 1:
                values = [loss[index] for loss in losses]
                comparisons.append(
                    near(
                        f"first loss above ln V, logits of std {spread:g}", values, spread**2 / 2, 0.2 * spread, "σ²/2"
                    )
                )
        return comparisons

    def _mirrored(self, seeds: Sequence[int]) -> list[Comparison]:
        """The paper's tie and T5's, with the same table up to its size."""
        root = math.sqrt(self.d_model)
        pairs = [self._gradients(seed) for seed in seeds]
        return [
            near(
                "largest difference between the logits of the two mirror images",
                [difference for difference, _ in pairs],
                0.0,
                1e-3,
                "only the products a s and b s count",
            ),
            near(
                "gradient of the paper's table over that of T5's",
                [ratio for _, ratio in pairs],
                root,
                root / 100,
                "a table √d times as large with factors √d times as small",
            ),
        ]

    def _gradients(self, seed: int) -> tuple[float, float]:
        unit, inputs, targets, draw = self._table_of(self.d_model, seed)
        other, outs, gradients = torch.randn(self.states, self.d_model, generator=draw), [], []
        for name in (PAPER, T5):
            tie = ties(self.d_model)[name]
            table = (tie.std * unit).requires_grad_()
            logits = tie.out * F.layer_norm(tie.into * table[inputs] + other, [self.d_model]) @ table.T
            F.cross_entropy(logits, targets).backward()
            outs.append(logits.detach())
            gradients.append(rms(table.grad) if table.grad is not None else math.nan)
        return (outs[0] - outs[1]).abs().max().item(), gradients[0] / gradients[1]

    def _copied(self, copies: Copies) -> list[Comparison]:
        comparisons = []
        for (d_model, added), runs in copies.items():
            own, where = own_logit(d_model, added), f"d = {d_model}, blocks add {added:g}"
            loss = math.log(math.exp(own) + self.vocabulary * math.exp(0.5)) - math.log(self.vocabulary)
            losses = [run["excess"] for run in runs]
            comparisons.append(near(f"own logit, {where}", [run["own"] for run in runs], own, 0.03 * own + 0.25, OWN))
            comparisons.append(near(f"first loss above ln V, {where}", losses, loss, 0.4, "ln(e^own + V e^½) - ln V"))
        return comparisons

    def _after_norms(self, seeds: Sequence[int]) -> list[Comparison]:
        comparisons = []
        for layers in self.layers:
            expected = math.sqrt(self.d_model) * 2 ** (-layers / 2)
            values = [self._post_norm(layers, seed) for seed in seeds]
            name = f"own logit after {layers} post-norm sub-layers"
            comparisons.append(
                near(name, values, expected, 0.05 * expected + 0.1, "each halves the square of the cosine")
            )
        return comparisons

    def _post_norm(self, layers: int, seed: int) -> float:
        unit, inputs, _, draw = self._table_of(self.d_model, seed)
        state = unit[inputs]
        for _ in range(layers):
            state = F.layer_norm(state + torch.randn(state.shape, generator=draw), [self.d_model])
        return (state * unit[inputs]).sum(-1).mean().item() / math.sqrt(self.d_model)

    def _claims(self, found: Found, copies: Copies) -> tuple[Claim, ...]:
        wide = max(self.widths)
        plain, paper, copied = found[PLAIN], found[PAPER], [run["excess"] for run in copies[wide, 1.0]]
        large, logits = [run["excess"] for run in plain], [run["logits"] for run in plain]
        return (
            Claim(
                text="A state has entries near ±1, a logit adds d of them, so the shared table must be small.",
                heard="a common explanation",
                comparisons=(
                    at_least(f"std of the logits, {PLAIN}", logits, 10.0, "far beyond 1"),
                    at_least(f"first loss above ln V, {PLAIN}", large, 10.0, "nats lost to the size alone"),
                ),
                answer=(
                    f"A table of N(0, 1) gives logits of std {number(mean(logits))} and a first loss "
                    f"{number(mean(large))} nats above ln V. A small table is one cure; a small factor on the logits is the other (T5)."
                ),
            ),
            Claim(
                text="Because the shared table is small, its rows need the factor √d where they enter.",
                heard="a common explanation",
                comparisons=(
                    near(f"embedding rms, {PAPER}", [run["embedding"] for run in paper], 1.0, 0.1, "rms 1"),
                    near(f"std of the logits, {PAPER}", [run["logits"] for run in paper], 1.0, 0.1, "std 1"),
                ),
                answer="With N(0, 1/√d) it is this one factor that gives both sides size 1.",
            ),
            Claim(
                text="Tied, of N(0, 1/√d) and times √d, a model starts near ln V.",
                heard="follows from the two, if states know nothing of their input",
                comparisons=(
                    at_most(
                        f"first loss above ln V at d = {wide}, blocks add as much as the embedding",
                        copied,
                        1.0,
                        "near ln V: within a nat (½ is expected of logits of std 1)",
                    ),
                ),
                answer=(
                    f"In a pre-norm stack the state still points along its input, which then has a logit of "
                    f"{number(mean(run['own'] for run in copies[wide, 1.0]))} among others of std 1: the first loss is "
                    f"{number(mean(copied))} nats above ln V at d = {wide}, and "
                    f"{number(mean(run['excess'] for run in copies[min(self.widths), 1.0]))} at d = "
                    f"{min(self.widths)}, where small tests hardly show it. A post-norm stack loses the direction by itself."
                ),
            ),
        )

    def _loss_figure(self, losses: list[list[float]]) -> Lines:
        root = math.log(self.vocabulary)
        exact = [expected_rows(spread, self.vocabulary).log_partition - root for spread in self.spreads]
        rule = tuple(spread**2 / 2 for spread in self.spreads)
        found = [mean(loss[index] for loss in losses) for index in range(len(self.spreads))]
        return Lines(
            title="First loss above ln V by the spread of the logits",
            x=Axis(label="standard deviation of the logits", log=True),
            y=Axis(label="nats", log=True),
            series=(
                *beside("measured, and the exact integral", self.spreads, found, exact, 0),
                Series(name="σ²/2", x=tuple(map(float, self.spreads)), y=rule, expected=True, color=1),
            ),
        )

    def _copy_figure(self, copies: Copies) -> Lines:
        return Lines(
            title="The logit of the input's own token",
            x=Axis(label="what the blocks add, over the embedding"),
            y=Axis(label="own logit"),
            series=tuple(
                series
                for color, d in enumerate(self.widths)
                for series in beside(
                    f"d = {d}",
                    self.added,
                    [mean(run["own"] for run in copies[d, r]) for r in self.added],
                    [own_logit(d, r) for r in self.added],
                    color,
                )
            ),
        )

    def _table(self, found: Found) -> Table:
        cells = ("embedding", "logits", "excess")
        return Table(
            caption=f"Tied tables at d = {self.d_model}, V = {self.vocabulary}, states that know nothing of the input",
            columns=("table", "embedding rms", "std of the logits", "first loss above ln V"),
            rows=tuple(
                (name, *(number(mean(run[cell] for run in runs)) for cell in cells)) for name, runs in found.items()
            ),
        )

    def _copy_table(self, copies: Copies) -> Table:
        return Table(
            caption=f"First loss above ln V of {PAPER}, by what the blocks add to the embedding",
            columns=("blocks add", *(f"d = {d}" for d in self.widths)),
            rows=tuple(
                (f"{r:g}", *(number(mean(run["excess"] for run in copies[d, r])) for d in self.widths))
                for r in self.added
            ),
        )


def own_logit(d_model: int, added: float) -> float:
    """√d / √(1 + r²): what a row of N(0, 1/√d) gives for a state of rms 1 of which it is one part."""
    return math.sqrt(d_model / (1 + added**2))


def excess(logits: Tensor, targets: Tensor) -> float:
    """Cross-entropy above that of guessing evenly."""
    return F.cross_entropy(logits, targets).item() - math.log(logits.shape[-1])


def rms(x: Tensor) -> float:
    """The root of the mean square."""
    return x.double().square().mean().sqrt().item()
