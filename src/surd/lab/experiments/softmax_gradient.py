"""Does the gradient through a softmax vanish when query·key is not divided by √d_k?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, Series, beside
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, mean, near, number
from surd.lab.softmax import DEAD, entry_gain, frobenius, frozen_dead_share, normal, over_queries, through, trace
from surd.measure.gaussian import GaussianRows, expected_rows
from surd.seed import generator

LIMIT = "Poisson–Dirichlet law, the limit of many keys and spread logits"
INTEGRAL = "exact one-dimensional integral for independent Gaussian logits"
CHI = "the same integral, averaged over the length of the query"

Statistics = dict[str, float]
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
    batches: int = 60
    """Sets of keys for each width and seed."""
    queries: int = 64
    """Rows for each set of keys."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        unit = {"any, scaled": [self._independent(1, seed) for seed in seeds]}
        independent = {width: [self._independent(width, seed) for seed in seeds] for width in self.widths}
        raw = {width: [self._products(width, 1.0, seed) for seed in seeds] for width in self.widths}
        scaled = {width: [self._products(width, width**-0.5, seed) for seed in seeds] for width in self.widths}
        apart = "; ".join(
            f"at d_k = {width} the mean trace is {average(raw[width], 'mean trace'):.3f} against "
            f"{average(independent[width], 'mean trace'):.3f} for independent logits, the mean ‖J‖_F "
            f"{average(raw[width], 'mean norm'):.3f} against {average(independent[width], 'mean norm'):.3f}"
            for width in self.widths
            if width <= 16 or width == self.example
        )
        return Findings(
            comparisons=(
                *self._exact(independent),
                *self._real(raw, scaled),
                self._query(raw, scaled),
            ),
            claims=self._claims(raw, scaled),
            figures=self._figures(raw, scaled),
            tables=(
                self._table("Independent Gaussian logits of standard deviation √d_k", unit | of_width(independent)),
                self._table("Products of Gaussian queries and keys, not scaled", of_width(raw)),
            ),
            notes=(
                "Real q·k has rows of different spread, since queries differ in length, which matters in narrow heads: "
                f"{apart}.",
                "A gain is the rms factor for a gradient whose entries are independent. Trained gradients need not be.",
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
        gradient = through(weights, normal(*weights.shape, generator=draw))
        arriving = scale * (gradient @ key.double())
        return statistics(weights) | {"query gradient": arriving.square().mean().sqrt().item()}

    def _exact(self, independent: Runs) -> list[Comparison]:
        found = []
        for width, runs in independent.items():
            std, where = math.sqrt(width), f"d_k = {width}, independent logits"
            exact = expected_rows(std, self.keys)
            found.append(near(f"mean trace at {where}", each(runs, "mean trace"), self._trace(exact), 0.02, INTEGRAL))
            found.append(near(f"rms ‖J‖_F at {where}", each(runs, "rms norm"), exact.jacobian_norm, 0.012, INTEGRAL))
            if std >= 16:
                limit = frozen_dead_share(std, self.keys)
                found.append(near(f"share of dead rows at {where}", each(runs, "dead"), limit, 0.07, LIMIT))
        return found

    def _real(self, raw: Runs, scaled: Runs) -> list[Comparison]:
        found = []
        for width in self.widths:
            for name, runs, scale in (("q·k", raw, 1.0), ("q·k / √d_k", scaled, width**-0.5)):
                if scale < 1 or width <= self.example:  # wider unscaled heads take long, and differ ever less
                    exact, values = over_queries(self._trace, width, scale, self.keys), each(runs[width], "mean trace")
                    found.append(near(f"mean trace of {name} at d_k = {width}", values, exact, 0.02, CHI))
        return found

    def _query(self, raw: Runs, scaled: Runs) -> Comparison:
        width = self.example
        squares = [
            over_queries(lambda rows: rows.jacobian_norm**2, width, scale, self.keys) for scale in (1.0, width**-0.5)
        ]
        expected = math.sqrt(width * squares[0] / squares[1])
        return near(
            f"rms gradient of the query at d_k = {width}, unscaled over scaled",
            ratios(raw[width], scaled[width], "query gradient"),
            expected,
            0.08 * expected,
            "dL/dq = c Kᵀ J g: without c = 1/√d_k the gradient is √d_k times as large for the same ‖J‖_F",
        )

    def _trace(self, rows: GaussianRows) -> float:
        return rows.trace / (1 - 1 / self.keys)

    def _claims(self, raw: Runs, scaled: Runs) -> tuple[Claim, ...]:
        wide, even, at = raw[self.example], scaled[self.example], f"at d_k = {self.example}, {self.keys} keys"
        least = min(self.widths)
        norms, gradients = ratios(wide, even, "mean norm"), ratios(wide, even, "query gradient")
        winners = [one["dead winner"] / two["winner"] for one, two in zip(wide, even, strict=True)]
        return (
            Claim(
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
                    f"of living rows: {average(wide, 'dead'):.1%} are dead against {average(even, 'dead'):.1%}. The "
                    "gradient becomes sparse and heavy-tailed, not small."
                ),
            ),
            Claim(
                text="In a saturated row only the weights near zero lose their gradient; the winner keeps it.",
                heard="a common explanation",
                comparisons=(
                    at_least(
                        f"gain of the largest weight in dead rows {at}, over that in scaled rows",
                        winners,
                        0.5,
                        "a winner that keeps its gradient keeps half of it at least",
                    ),
                ),
                answer=(
                    f"The winner's median gain in a dead row is {number(average(wide, 'dead winner'))} against "
                    f"{number(average(even, 'winner'))} in scaled rows. The gradients of a row add up to zero: what "
                    "the others do not get, the winner cannot have."
                ),
            ),
            Claim(
                text="Divided by √d_k, attention behaves alike at every width of a head.",
                heard="a common explanation",
                comparisons=tuple(
                    near(f"mean trace of q·k / √d_k, d_k = {width} less {least}", differences, 0.0, 0.03, "alike")
                    for width in self.widths[1:]
                    for differences in [
                        [
                            one["mean trace"] - two["mean trace"]
                            for one, two in zip(scaled[width], scaled[least], strict=True)
                        ]
                    ]
                ),
                answer="So it is for independent queries and keys; it says nothing of trained ones, or of long rows.",
            ),
            Claim(
                text="For narrow heads no scale is needed.",
                heard="a common explanation",
                comparisons=(
                    at_least(
                        f"mean trace at d_k = {least}, unscaled",
                        each(raw[least], "mean trace"),
                        0.8,
                        "rows that pass nearly as much as even ones",
                    ),
                    at_most("share of dead rows there", each(raw[least], "dead"), 0.005, "hardly a row is lost"),
                ),
                answer=f"At d_k = {least} the mean trace is {average(raw[least], 'mean trace'):.3f} of an even row's.",
            ),
        )

    def _figures(self, raw: Runs, scaled: Runs) -> tuple[Lines, ...]:
        def found(runs: Runs, name: str) -> list[float]:
            return [average(of, name) for of in runs.values()]

        def exact(of: Callable[[GaussianRows], float]) -> list[float]:
            return [of(expected_rows(math.sqrt(width), self.keys)) for width in self.widths]

        across, places = Axis(label="d_k", log=True), tuple(map(float, self.widths))
        one, ones = expected_rows(1.0, self.keys), len(places)
        return (
            Lines(
                title="The trace collapses without the factor: mean of (1 - Σ p²) / (1 - 1/n)",
                x=across,
                y=Axis(label="mean trace"),
                series=(
                    *beside("q·k / √d_k", places, found(scaled, "mean trace"), [self._trace(one)] * ones, 0),
                    *beside("q·k", places, found(raw, "mean trace"), exact(self._trace), 1),
                ),
            ),
            Lines(
                title="The norm of the Jacobian first rises: ‖J‖_F",
                x=across,
                y=Axis(label="gain"),
                series=(
                    *beside("rms, scaled", places, found(scaled, "rms norm"), [one.jacobian_norm] * ones, 0),
                    *beside("rms, unscaled", places, found(raw, "rms norm"), exact(lambda rows: rows.jacobian_norm), 1),
                    Series(name="mean, unscaled", x=places, y=tuple(found(raw, "mean norm")), color=2),
                    Series(name="median, unscaled", x=places, y=tuple(found(raw, "median norm")), color=3),
                ),
            ),
            Lines(
                title="Rows die without the factor: share with a weight above 0.99",
                x=across,
                y=Axis(label="share of rows"),
                series=(
                    Series(name="q·k / √d_k", x=places, y=tuple(found(scaled, "dead")), color=0),
                    Series(name="q·k", x=places, y=tuple(found(raw, "dead")), color=1),
                ),
            ),
        )

    def _table(self, caption: str, rows: Mapping[str, list[Statistics]]) -> Table:
        cells = ("median trace", "median norm", "mean norm", "rms norm", "dead")
        return Table(
            caption=f"{caption}: {self.keys} keys, trace divided by 1 - 1/n, mean over seeds",
            columns=("d_k", "median trace", "median ‖J‖_F", "mean ‖J‖_F", "rms ‖J‖_F", "dead rows"),
            rows=tuple((name, *(f"{average(runs, cell):.4f}" for cell in cells)) for name, runs in rows.items()),
        )


def statistics(weights: Tensor) -> Statistics:
    """What one seed says of its rows."""
    traces, norms, top = trace(weights), frobenius(weights), weights.max(-1, keepdim=True)
    winner = entry_gain(weights).gather(-1, top.indices)
    dead = winner[top.values > DEAD]
    return {
        "mean trace": traces.mean().item(),
        "median trace": traces.median().item(),
        "median norm": norms.median().item(),
        "mean norm": norms.mean().item(),
        "rms norm": norms.square().mean().sqrt().item(),
        "dead": dead.numel() / winner.numel(),
        "winner": winner.median().item(),
        "dead winner": dead.median().item() if dead.numel() else 0.0,
    }


def of_width(runs: Runs) -> dict[str, list[Statistics]]:
    """The same, by the width's name."""
    return {str(width): found for width, found in runs.items()}


def each(runs: list[Statistics], name: str) -> list[float]:
    """One value a seed."""
    return [seed[name] for seed in runs]


def average(runs: list[Statistics], name: str) -> float:
    """The mean over seeds."""
    return mean(each(runs, name))


def ratios(over: list[Statistics], under: list[Statistics], name: str) -> list[float]:
    """One ratio a seed."""
    return [one[name] / two[name] for one, two in zip(over, under, strict=True)]
