"""Does the gradient through a softmax vanish when query·key is not divided by √d_k?"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from surd.lab import softmax
from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, curves
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, near, number
from surd.lab.samples import Statistics, average, differences, each, mean, ratios
from surd.lab.softmax import CERTAIN, INTEGRAL, RANKS, expected_trace, normal, over_queries, statistics
from surd.measure.softmax.gaussian import GaussianRows, expected_rows
from surd.measure.softmax.statistics import DEAD
from surd.seed import generator

LIMIT = "Poisson–Dirichlet law, the limit of many keys and spread logits"
CHI = "the same integral, averaged over the length of the query"
CELLS = {
    "median trace": "median trace",
    "median norm": "median ‖J‖_F",
    "mean norm": "mean ‖J‖_F",
    "rms norm": "rms ‖J‖_F",
    "certain": "certain rows",
    "dead": "dead rows",
}
"""Columns of the tables."""
Runs = dict[int, list[Statistics]]
"""For each width, the statistics of each seed."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxGradient(Experiment):
    """Takes the Jacobian of many rows, for independent Gaussian logits and for real products of query and key."""

    prediction: ClassVar[str] = (
        "The mean gain of the Jacobian does not vanish: it rises until the standard deviation of the logits is about "
        "2 Φ⁻¹(1 - 1/n) and then falls only as its root. What collapses is the trace, 1 - Σ p², and the share of rows "
        "that pass any gradient: it becomes sparse, carried by ever fewer rows. Times 1/√d_k nothing depends on d_k."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1: the claim of extremely small gradients.",
        "J = diag(p) - p pᵀ: tr J = 1 - Σ p², ‖J‖_F² = Σ p² - 2 Σ p³ + (Σ p²)²; a gradient g of independent unit "
        "entries leaves with E ‖J g‖² = ‖J‖_F².",
        "1/Zᵏ = ∫ tᵏ⁻¹ e^{-tZ} dt / Γ(k) makes the expectation for independent logits an integral in one dimension.",
        "Derrida 1981, Phys. Rev. B 24; Pitman & Yor 1997, Ann. Probab. 25: weights of very spread Gaussian logits.",
    )

    keys: int = 64
    """Keys of a row."""
    widths: tuple[int, ...] = (4, 16, 32, 64, 128, 256, 512, 1024)
    """Widths of a head; unscaled logits then have standard deviation √d_k."""
    example: int = 64
    """The width for which the claims are judged."""
    batches: int = 160
    """Sets of keys for each width and seed."""
    queries: int = 24
    """Rows for each set of keys."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        unit = [self._independent(1, seed) for seed in seeds]
        independent = {width: [self._independent(width, seed) for seed in seeds] for width in self.widths}
        raw = {width: [self._products(width, 1.0, seed) for seed in seeds] for width in self.widths}
        scaled = {width: [self._products(width, width**-0.5, seed) for seed in seeds] for width in self.widths}
        return Findings(
            comparisons=(
                *self._exact(independent),
                *self._real(raw, scaled),
                *self._apart(raw, independent),
                self._query(raw, scaled),
            ),
            claims=(self._vanishes(raw, scaled), self._winner(raw, scaled), self._alike(scaled), self._narrow(raw)),
            figures=self._figures(raw, scaled),
            tables=(
                self._table(
                    "Independent Gaussian logits of standard deviation √d_k", {"any, scaled": unit}, independent
                ),
                self._table("Products of Gaussian queries and keys, not scaled", {}, raw),
            ),
            notes=(
                "Real q·k differs from independent logits in narrow heads alone, where queries differ much in length.",
                "A gain is the rms factor for a gradient whose entries are independent. Trained gradients need not be.",
                f"A certain row has a weight above {CERTAIN}; a dead row has ‖J‖_F below {DEAD}.",
            ),
        )

    def _independent(self, width: int, seed: int) -> Statistics:
        draw = generator(seed, self.name, "independent", width)
        return statistics(
            (math.sqrt(width) * normal(self.batches * self.queries, self.keys, generator=draw)).softmax(-1)
        )

    def _products(self, width: int, scale: float, seed: int) -> Statistics:
        """Rows of softmax(scale · q·k), and the gradient that reaches the query, scale · Kᵀ J g."""
        draw = generator(seed, self.name, "products", width)  # the same for every scale
        query = torch.randn(self.batches, self.queries, width, generator=draw)
        key = torch.randn(self.batches, self.keys, width, generator=draw)
        weights = (scale * (query @ key.mT).double()).softmax(-1)
        gradient = softmax.through(weights, normal(*weights.shape, generator=draw))
        arriving = scale * (gradient @ key.double())
        return {**statistics(weights), "query gradient": arriving.square().mean().sqrt().item()}

    def _exact(self, independent: Runs) -> Iterator[Comparison]:
        for width, runs in independent.items():
            std, where = math.sqrt(width), f"d_k = {width}, independent logits"
            exact = expected_rows(std, self.keys)
            yield near(f"mean trace at {where}", each(runs, "mean trace"), expected_trace(exact), 0.02, INTEGRAL)
            yield near(f"rms ‖J‖_F at {where}", each(runs, "rms norm"), exact.jacobian_norm, 0.012, INTEGRAL)
            if std >= 16:
                limit = softmax.certain_share(std, self.keys)
                yield near(f"share of certain rows at {where}", each(runs, "certain"), limit, 0.07, LIMIT)

    def _real(self, raw: Runs, scaled: Runs) -> Iterator[Comparison]:
        for width in self.widths:
            for name, runs, scale in (("q·k", raw, 1.0), ("q·k / √d_k", scaled, width**-0.5)):
                if scale < 1 or width <= self.example:  # wider unscaled heads take long, and differ ever less
                    exact = over_queries(expected_trace, width, scale, self.keys)
                    values = each(runs[width], "mean trace")
                    yield near(f"mean trace of {name} at d_k = {width}", values, exact, 0.02, CHI)

    def _apart(self, raw: Runs, independent: Runs) -> Iterator[Comparison]:
        """Where real products differ from independent logits: rows of a narrow head differ in spread."""
        for width in (width for width in self.widths if width <= 16):
            exact = expected_rows(math.sqrt(width), self.keys)
            norm = math.sqrt(over_queries(squared_norm, width, 1.0, self.keys)) - exact.jacobian_norm
            mean_trace = over_queries(expected_trace, width, 1.0, self.keys) - expected_trace(exact)
            for name, expected, tolerance in (("rms norm", norm, 0.008), ("mean trace", mean_trace, 0.012)):
                found = differences(each(raw[width], name), each(independent[width], name))
                yield near(f"{name} of q·k less independent logits, d_k = {width}", found, expected, tolerance, CHI)

    def _query(self, raw: Runs, scaled: Runs) -> Comparison:
        width = self.example
        squares = [over_queries(squared_norm, width, scale, self.keys) for scale in (1.0, width**-0.5)]
        expected = math.sqrt(width * squares[0] / squares[1])
        return near(
            f"rms gradient of the query at d_k = {width}, unscaled over scaled",
            self._ratios(raw, scaled, "query gradient"),
            expected,
            0.08 * expected,
            "dL/dq = c Kᵀ J g: without c = 1/√d_k the gradient is √d_k times as large for the same ‖J‖_F",
        )

    def _ratios(self, over: Runs, under: Runs, name: str) -> list[float]:
        return ratios(each(over[self.example], name), each(under[self.example], name))

    def _vanishes(self, raw: Runs, scaled: Runs) -> Claim:
        wide, even, at = raw[self.example], scaled[self.example], f"at d_k = {self.example}, {self.keys} keys"
        norms, gradients = self._ratios(raw, scaled, "mean norm"), self._ratios(raw, scaled, "query gradient")
        return Claim(
            text="Without the factor 1/√d_k the softmax saturates and its gradients become extremely small.",
            heard="Vaswani et al. 2017, section 3.2.1, and most explanations since",
            comparisons=(
                at_most(f"mean ‖J‖_F {at}, unscaled over scaled", norms, 0.5, "smaller by half, read generously"),
                at_most(f"rms gradient of the query {at}, unscaled over scaled", gradients, 0.5, "the same"),
            ),
            answer=(
                f"Not on average: {at}, the mean norm of the Jacobian is {average(wide, 'mean norm'):.3f} unscaled "
                f"against {average(even, 'mean norm'):.3f} scaled, {number(mean(norms))} times, and the gradient "
                f"of the query {number(mean(gradients))} times. What does collapse is the trace (median "
                f"{average(wide, 'median trace'):.3f} against {average(even, 'median trace'):.3f}) and the share "
                f"of living rows: {average(wide, 'certain'):.1%} have a weight above {CERTAIN} against "
                f"{average(even, 'certain'):.1%}, {average(wide, 'dead'):.1%} are dead against "
                f"{average(even, 'dead'):.1%}. The gradient becomes sparse and heavy-tailed, not small."
            ),
        )

    def _winner(self, raw: Runs, scaled: Runs) -> Claim:
        wide, even = raw[self.example], scaled[self.example]
        return Claim(
            text="In a saturated row only the weights near zero lose their gradient; the winner keeps it.",
            heard="a common explanation",
            comparisons=(
                at_least(
                    f"gain of the largest weight in certain rows at d_k = {self.example}, over that in scaled rows",
                    ratios(each(wide, "certain winner"), each(even, "winner")),
                    0.5,
                    "a winner that keeps its gradient keeps half of it at least",
                ),
            ),
            answer=(
                f"The winner's median gain in a certain row is {number(average(wide, 'certain winner'))} against "
                f"{number(average(even, 'winner'))} in scaled rows. The gradients of a row add up to zero: what "
                "the others do not get, the winner cannot have."
            ),
        )

    def _alike(self, scaled: Runs) -> Claim:
        least = min(self.widths)
        first = each(scaled[least], "mean trace")
        return Claim(
            text="Divided by √d_k, attention behaves alike at every width of a head.",
            heard="a common explanation",
            comparisons=tuple(
                near(
                    f"mean trace of q·k / √d_k, d_k = {width} less {least}",
                    differences(each(scaled[width], "mean trace"), first),
                    0.0,
                    0.03,
                    "alike",
                )
                for width in self.widths[1:]
            ),
            answer="So it is for independent queries and keys; it says nothing of trained ones, or of long rows.",
        )

    def _narrow(self, raw: Runs) -> Claim:
        least = min(self.widths)
        traces = each(raw[least], "mean trace")
        return Claim(
            text="For narrow heads no scale is needed.",
            heard="a common explanation",
            comparisons=(
                at_least(f"mean trace at d_k = {least}, unscaled", traces, 0.8, "passing nearly as much as even rows"),
                at_most("share of certain rows there", each(raw[least], "certain"), 0.005, "hardly a row is lost"),
            ),
            answer=f"At d_k = {least} the mean trace is {mean(traces):.3f} of an even row's.",
        )

    def _figures(self, raw: Runs, scaled: Runs) -> tuple[Lines, ...]:
        def exact(of: Callable[[GaussianRows], float]) -> Callable[[float], float]:
            return lambda width: of(expected_rows(math.sqrt(width), self.keys))

        def lines(title: str, y: str, series: Mapping[str, tuple[Runs, str]], laws: dict[str, Callable]) -> Lines:
            found = {
                name: {width: each(seeds, what) for width, seeds in runs.items()}
                for name, (runs, what) in series.items()
            }
            return Lines(title=title, x=Axis(label="d_k", log=True), y=Axis(label=y), series=curves(found, laws))

        one, wide, even = expected_rows(1.0, self.keys), raw[self.example], scaled[self.example]
        return (
            lines(
                "The trace collapses without the factor: mean of (1 - Σ p²) / (1 - 1/n)",
                "mean trace",
                {"q·k / √d_k": (scaled, "mean trace"), "q·k": (raw, "mean trace")},
                {"q·k / √d_k": lambda _: expected_trace(one), "q·k": exact(expected_trace)},
            ),
            lines(
                "The norm of the Jacobian first rises: ‖J‖_F",
                "gain",
                {"rms, scaled": (scaled, "rms norm")}
                | {f"{what}, unscaled": (raw, f"{what} norm") for what in ("rms", "mean", "median", "5 %", "95 %")},
                {"rms, scaled": lambda _: one.jacobian_norm, "rms, unscaled": exact(lambda rows: rows.jacobian_norm)},
            ),
            lines(
                "Rows die without the factor",
                "share of rows",
                {f"q·k / √d_k, a weight above {CERTAIN}": (scaled, "certain")}
                | {f"q·k, a weight above {CERTAIN}": (raw, "certain"), f"q·k, ‖J‖_F below {DEAD}": (raw, "dead")},
                {},
            ),
            Lines(
                title=f"Who gets a gradient at d_k = {self.example}: gain by the rank of the weight",
                x=Axis(label="rank of the weight in its row", log=True),
                y=Axis(label="mean gain", log=True),
                series=curves(
                    {
                        name: {rank: each(runs, f"rank {rank}") for rank in RANKS if rank <= self.keys}
                        for name, runs in (("q·k / √d_k", even), ("q·k", wide))
                    },
                    {},
                ),
            ),
        )

    def _table(self, caption: str, first: dict[str, list[Statistics]], others: Runs) -> Table:
        rows = first | {str(width): runs for width, runs in others.items()}
        return Table(
            caption=f"{caption}: {self.keys} keys, trace divided by 1 - 1/n, mean over seeds",
            columns=("d_k", *CELLS.values()),
            rows=tuple((name, *(f"{average(runs, cell):.4f}" for cell in CELLS)) for name, runs in rows.items()),
        )


def squared_norm(rows: GaussianRows) -> float:
    """E ‖J‖_F²."""
    return rows.jacobian_norm**2
