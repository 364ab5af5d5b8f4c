"""Do libraries start attention at one scale, as their similar weights suggest?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from surd.lab.experiment import Experiment, Findings, installed
from surd.lab.figure import Axis, Lines, Rows, Series, beside
from surd.lab.finding import Claim, Comparison, Table, at_most, mean, near, not_measured, number
from surd.lab.installed import LIBRARIES, Attention, defaults
from surd.nn.init import InitRule, KerasInit, Matrix, SmallInit, TorchInit, TransformerInit
from surd.seed import derive, generator

OLD, NEW, TORCH, SMALL, EACH, T5 = (
    "Keras to 3.14",
    "Keras from 3.15",
    "Glorot over three stacked",
    "N(0, 0.02)",
    "Glorot for each",
    "T5, not scaled",
)
FIXED = "keras-team/keras pull request 22789"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a rule for the weights of queries and keys means for the scores of inputs of rms 1."""

    init: InitRule | None
    """The rule as a part of this package; None for T5's, whose queries are drawn smaller instead of scaled."""
    law: Callable[[int, int, int], float]
    """Standard deviation of a row's scores, from d_model, heads and d_k."""
    formula: str
    """The law in words."""

    def stds(self, d_model: int, heads: int, d_k: int) -> tuple[float, float]:
        """Standard deviations of the weights of queries and keys."""
        if self.init is None:
            return (d_model * d_k) ** -0.5, d_model**-0.5
        matrix = Matrix(role="query", inputs=d_model, outputs=heads * d_k, heads=heads)
        return (self.init.spread(matrix).std,) * 2

    def draw(self, d_model: int, heads: int, d_k: int, draw: torch.Generator, drawn: int) -> Attention:
        """The weights of the first `drawn` heads."""
        query, key = (std * torch.randn(d_model, drawn * d_k, generator=draw) for std in self.stds(d_model, heads, d_k))
        return Attention(query=query, key=key, scale=1.0 if self.init is None else d_k**-0.5)


RULES = {
    OLD: Rule(init=KerasInit(version="3.14"), law=lambda d, h, k: 2 / (h + k), formula="2 / (h + d_k)"),
    NEW: Rule(init=KerasInit(), law=lambda d, h, k: 2 * d / (d + h * k), formula="2 d / (d + h d_k)"),
    TORCH: Rule(init=TorchInit(), law=lambda d, h, k: 2 * d / (d + 3 * h * k), formula="2 d / (d + 3 h d_k)"),
    SMALL: Rule(init=SmallInit(), law=lambda d, h, k: 0.02**2 * d, formula="0.02² d"),
    EACH: Rule(
        init=TransformerInit(attention_gain=1), law=lambda d, h, k: 2 * d / (d + h * k), formula="2 d / (d + h d_k)"
    ),
    T5: Rule(init=None, law=lambda d, h, k: 1.0, formula="√d_k · d_k^-½ · 1, without 1/√d_k"),
}
OF_LIBRARY = {
    "torch.nn.MultiheadAttention": TORCH,
    "transformers llama": SMALL,
    "transformers gpt2": SMALL,
    "transformers bart": SMALL,
    "transformers t5": T5,
}
"""The rule that each installed class should follow; that of Keras depends on its version."""


@dataclass(frozen=True, kw_only=True)
class LibraryInits(Experiment):
    """Draws queries and keys by six rules, builds the installed classes, and takes the spread of the scores."""

    prediction: ClassVar[str] = (
        "The scores of unit inputs have standard deviation √d_k · c · d_model · w_q · w_k for weights of w_q and w_k. It "
        "is 2 / (h + d_k) in Keras up to 3.14, 1 from 3.15 on, ½ for Glorot over the three stacked matrices, 1 for each by "
        "itself and for T5, and 0.0004 d_model for weights of N(0, 0.02): alike in weights, they differ a hundredfold."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "Glorot & Bengio 2010: variance 2 / (fan in + fan out).",
        f"{FIXED}: until 3.14 an attention kernel (d_model, heads, d_k) had the fans of a convolution.",
        "reset_parameters of torch.nn.MultiheadAttention: one Glorot rule over the stacked 3 d_model × d_model matrix.",
        "Raffel et al. 2020 (arXiv 1910.10683): T5 draws queries by (d_model d_k)^-½ and leaves out 1/√d_k.",
        "Devlin et al. 2019 (arXiv 1810.04805), A.2, and the configs of public models: N(0, 0.02).",
    )

    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)
    """Widths of the model."""
    d_k: int = 64
    """Width of a head; the model has as many as fit."""
    drawn: int = 4
    """Heads that are drawn, at most."""
    tokens: int = 64
    """Tokens that attend to each other."""
    example: int = 512
    """Width of the model for which the installed classes are built."""
    libraries: tuple[str, ...] = field(default=tuple(LIBRARIES))
    """Installed classes to build."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {
            name: {width: [self._drawn(rule, name, width, seed) for seed in seeds] for width in self.widths}
            for name, rule in RULES.items()
        }
        built = {
            name: [self._built(name, seed) for seed in seeds] for name in self.libraries if LIBRARIES[name].version
        }
        packages = {LIBRARIES[name].package: LIBRARIES[name].version or "" for name in built}
        return Findings(
            comparisons=(*self._rules(found), *self._classes(built)),
            claims=self._claims(found, built),
            figures=(self._figure(found), self._rows(built)),
            tables=(self._table(found),),
            notes=(
                "What is said of an installed class holds for the version in the signature; a class that is not "
                "installed is not measured, and its line is the formula alone.",
            ),
            versions={name: version for name, version in packages.items() if name != "torch"},
        )

    def _drawn(self, rule: Rule, name: str, width: int, seed: int) -> float:
        heads, draw = width // self.d_k, generator(seed, self.name, name, width)
        attention = rule.draw(width, heads, self.d_k, draw, min(heads, self.drawn))
        return spread(attention, self.d_k, self.tokens, draw)

    def _built(self, name: str, seed: int) -> float:
        heads, draw = self.example // self.d_k, generator(seed, self.name, "inputs")
        attention = LIBRARIES[name].build(self.example, heads, self.d_k, derive(seed, self.name, name))
        return spread(attention, self.d_k, self.tokens, draw)

    def _law(self, rule: str, width: int) -> float:
        return RULES[rule].law(width, width // self.d_k, self.d_k)

    def _rules(self, found: dict[str, dict[int, list[float]]]) -> list[Comparison]:
        comparisons = []
        for name, by_width in found.items():
            for width in (min(self.widths), self.example, max(self.widths)):
                law = self._law(name, width)
                quantity = f"std of the scores, {name}, d_model = {width}"
                comparisons.append(near(quantity, by_width[width], law, 0.08 * law, RULES[name].formula))
        return comparisons

    def _classes(self, built: dict[str, list[float]]) -> list[Comparison]:
        comparisons = []
        for name in self.libraries:
            rule = rule_of(name)
            law, quantity = self._law(rule, self.example), f"std of the scores, {name}, d_model = {self.example}"
            if name in built:
                comparisons.append(near(quantity, built[name], law, 0.08 * law, RULES[rule].formula))
            else:
                reason = f"{LIBRARIES[name].package} is not installed"
                comparisons.append(not_measured(quantity, law, 0.08 * law, RULES[rule].formula, reason))
        return comparisons

    def _claims(self, found: dict[str, dict[int, list[float]]], built: dict[str, list[float]]) -> tuple[Claim, ...]:
        width, wide = self.example, 4096 if 4096 in self.widths else max(self.widths)
        old, new = found[OLD][width], found[NEW][width]
        at_wide = [[by_width[wide][seed] for by_width in found.values()] for seed in range(len(old))]
        ratios = [max(values) / min(values) for values in at_wide]
        here = installed("keras")
        seen = f"Keras {here}, installed here, gives {number(mean(built[KERAS]))}." if KERAS in built else NO_KERAS
        return (
            Claim(
                text="Keras' attention is the more adaptive: its Glorot limit depends on d_model.",
                heard="a common explanation",
                comparisons=(
                    near(f"std of the scores, {OLD}, d_model = {width}", old, 1.0, 0.5, "adapted: about 1"),
                    near(f"std of the scores, {NEW}, d_model = {width}", new, 1.0, 0.5, "adapted: about 1"),
                ),
                answer=(
                    f"It depends on the version. Up to 3.14 the scores start at {number(mean(old))}, "
                    f"{number(1 / mean(old))} times too small, since d_model cancels; from 3.15 on at {number(mean(new))}. "
                    f"{seen}"
                ),
            ),
            self._llama(),
            Claim(
                text="All of them start with weights of order 0.01, so it makes no difference.",
                heard="a common explanation",
                comparisons=(
                    at_most(f"largest over smallest std of the scores at d_model = {wide}", ratios, 2.0, "alike"),
                ),
                answer=(
                    f"At d_model = {wide} the scores of the six rules differ {number(mean(ratios))}-fold, from "
                    f"{number(mean(map(min, at_wide)))} to {number(mean(map(max, at_wide)))}. What counts is the "
                    "weight's standard deviation times the root of its inputs, not the weight."
                ),
            ),
        )

    def _llama(self) -> Claim:
        quantity, source = "initializer_range of transformers' LlamaConfig", "as is said"
        if installed("transformers"):
            value = float(defaults("llama").initializer_range)
            comparison = near(quantity, [value], 0.02, 1e-9, source)
            answer = (
                f"The config of the class has {value:g}. It is a default of a port: it says nothing of how the "
                f"published weights were trained. At d_model = 4096 it gives queries of rms {value * 64:.2f} for unit inputs."
            )
        else:
            comparison = not_measured(quantity, 0.02, 1e-9, source, "transformers is not installed")
            answer = "Not looked up here: transformers is not installed."
        return Claim(
            text="Llama starts with a standard deviation of 0.02.",
            heard="a common explanation",
            comparisons=(comparison,),
            answer=answer,
        )

    def _figure(self, found: dict[str, dict[int, list[float]]]) -> Lines:
        return Lines(
            title=f"Spread of the scores at the start, heads of width {self.d_k}",
            x=Axis(label="d_model", log=True),
            y=Axis(label="standard deviation", log=True),
            series=tuple(
                series
                for color, (name, by_width) in enumerate(found.items())
                for series in beside(
                    name,
                    self.widths,
                    map(mean, by_width.values()),
                    [self._law(name, width) for width in self.widths],
                    color,
                )
            ),
        )

    def _rows(self, built: dict[str, list[float]]) -> Rows:
        places = {name: float(index) for index, name in enumerate(self.libraries)}
        return Rows(
            title=f"Installed classes, d_model = {self.example}",
            names=self.libraries,
            x=Axis(label="standard deviation of the scores", log=True),
            series=(
                Series(name="measured", x=tuple(places[name] for name in built), y=tuple(map(mean, built.values()))),
                Series(
                    name="predicted",
                    x=tuple(places.values()),
                    y=tuple(self._law(rule_of(name), self.example) for name in places),
                    expected=True,
                ),
            ),
        )

    def _table(self, found: dict[str, dict[int, list[float]]]) -> Table:
        def weights(name: str) -> str:
            return " / ".join(number(std) for std in RULES[name].stds(self.example, self.example // self.d_k, self.d_k))

        return Table(
            caption=f"Rules: weights of query / key at d_model = {self.example}, and the spread of the scores",
            columns=("rule", "weights", *(f"d_model = {width}" for width in self.widths)),
            rows=tuple(
                (name, weights(name), *(number(mean(values)) for values in by_width.values()))
                for name, by_width in found.items()
            ),
        )


KERAS = "keras MultiHeadAttention"
NO_KERAS = "Keras is not installed here: its classes were not measured, these numbers are drawn by its rules."


def rule_of(library: str) -> str:
    """The rule that a class follows, for Keras that of the installed version."""
    if library != KERAS:
        return OF_LIBRARY[library]
    version = installed("keras") or "3.15"
    return NEW if tuple(map(int, version.split(".")[:2])) >= (3, 15) else OLD


def spread(attention: Attention, d_k: int, tokens: int, draw: torch.Generator) -> float:
    """Standard deviation within a row of the scores of unit inputs, over all heads."""
    x = torch.randn(tokens, attention.query.shape[0], generator=draw)
    query, key = (_heads(x @ weight, d_k) for weight in (attention.query, attention.key))
    return math.sqrt((attention.scale * query @ key.mT).var(-1).mean().item())


def _heads(flat: Tensor, d_k: int) -> Tensor:
    """(tokens, heads · d_k) -> (heads, tokens, d_k)."""
    return flat.unflatten(-1, (-1, d_k)).transpose(0, 1)
