"""Do libraries start attention at one scale, as their similar weights suggest?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from surd.interchange.installed import ATTENTIONS, Attention, defaults
from surd.interchange.packages import installed
from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Lines, Rows, curves, marks
from surd.lab.finding import Claim, Comparison, Table, at_most, near, not_measured, number
from surd.lab.projections import NEW, OLD, RULES, SMALL, STACKED, T5
from surd.lab.samples import Statistics, average, each, mean, rms
from surd.seed import derive, generator

Shape = tuple[int, int, int]
"""d_model, heads, d_k."""
Spreads = dict[str, dict[int, list[float]]]
"""Of each rule, by width of the model, one value a seed."""
Built = dict[str, dict[Shape, list[Statistics]]]
"""Of each class, by shape, the statistics of each seed."""


KERAS = "keras MultiHeadAttention"


def rule_of(library: str) -> str:
    """The rule that an installed class follows; for Keras that of the installed version, else of the newest."""
    version = installed("keras") or "3.15"
    keras = NEW if tuple(map(int, version.split(".")[:2])) >= (3, 15) else OLD
    return {KERAS: keras, "torch.nn.MultiheadAttention": STACKED, "transformers t5": T5}.get(library, SMALL)


@dataclass(frozen=True, kw_only=True)
class LibraryInits(Experiment):
    """Draws queries and keys by six rules, builds the installed classes, and takes the spread of the scores."""

    prediction: ClassVar[str] = (
        "The scores of unit inputs have standard deviation √d_k · c · d_model · w_q · w_k for weights of w_q and w_k: "
        "2 / (h + d_k) in Keras up to 3.14, 1 from 3.15 on, ½ for Glorot over the three stacked matrices, 1 for each "
        "by itself and for T5, and 0.0004 d_model for N(0, 0.02). Alike in weights, they differ a hundredfold."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "Glorot & Bengio 2010: variance 2 / (fan in + fan out).",
        "keras-team/keras pull request 22789: until 3.14 an attention kernel had the fans of a convolution.",
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
    shapes: tuple[Shape, ...] = ((512, 8, 64), (256, 4, 64), (128, 4, 32), (64, 2, 32), (512, 2, 512))
    """d_model, heads and d_k for which the installed classes are built, as far as they can be."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        found = {
            name: {width: [self._drawn(name, width, seed) for seed in seeds] for width in self.widths} for name in RULES
        }
        built = {
            name: {
                shape: [self._built(name, shape, seed) for seed in seeds]
                for shape in self.shapes
                if shape[0] == shape[1] * shape[2] or name in FREE
            }
            for name, one in ATTENTIONS.items()
            if one.version
        }
        return Findings(
            comparisons=(*self._rules(found), *self._classes(built)),
            claims=(self._adaptive(found, built), self._llama(), self._small(found)),
            figures=(self._figure(found), self._marks(built)),
            tables=(self._weights(), self._table(built)),
            notes=(
                "What is said of an installed class holds for the version in the signature; a class that is not "
                "installed is not measured, and its line is the formula alone.",
            ),
            versions={ATTENTIONS[name].package: ATTENTIONS[name].version or "" for name in built},
        )

    def _drawn(self, name: str, width: int, seed: int) -> float:
        draw, shape = generator(seed, self.name, name, width), (width, width // self.d_k, self.d_k)
        heads = min(width // self.d_k, self.drawn)
        query, key = (std * torch.randn(width, heads * self.d_k, generator=draw) for std in RULES[name].stds(*shape))
        scale = 1.0 if RULES[name].init is None else self.d_k**-0.5
        return sizes(Attention(query=query, key=key, scale=scale), self.d_k, self.tokens, draw)["scores"]

    def _built(self, name: str, shape: Shape, seed: int) -> Statistics:
        attention = ATTENTIONS[name].build(*shape, derive(seed, self.name, name))
        return sizes(attention, shape[2], self.tokens, generator(seed, self.name, "inputs"))

    def _law(self, rule: str, width: float) -> float:
        return RULES[rule].law(int(width), int(width) // self.d_k, self.d_k)

    def _rules(self, found: Spreads) -> Iterator[Comparison]:
        for name, by_width in found.items():
            for width in (min(self.widths), max(self.widths)):
                law, quantity = self._law(name, width), f"std of the scores, {name}, d_model = {width}"
                yield near(quantity, by_width[width], law, 0.08 * law, RULES[name].formula)

    def _classes(self, built: Built) -> Iterator[Comparison]:
        for name, one in ATTENTIONS.items():
            rule = RULES[rule_of(name)]
            for shape in built.get(name, self.shapes[:1]):
                law, where = rule.law(*shape), f"{name}, {' × '.join(map(str, shape))}"
                if name in built:
                    found, query = built[name][shape], rule.query(*shape)
                    yield near(f"std of the scores, {where}", each(found, "scores"), law, 0.08 * law, rule.formula)
                    yield near(f"rms of a query, {where}", each(found, "query"), query, 0.04 * query, "√d_model · w_q")
                else:
                    reason = f"{one.package} is not installed"
                    yield not_measured(f"std of the scores, {where}", law, 0.08 * law, rule.formula, reason)

    def _adaptive(self, found: Spreads, built: Built) -> Claim:
        width = self.shapes[0][0]
        old, new = found[OLD][width], found[NEW][width]
        here = average(built[KERAS][self.shapes[0]], "scores") if KERAS in built else math.nan
        seen = f"Keras {installed('keras')}, installed here, gives {number(here)}." if KERAS in built else NO_KERAS
        return Claim(
            text="Keras' attention is the more adaptive: its Glorot limit depends on d_model.",
            heard="a common explanation",
            comparisons=(
                near(f"std of the scores, {OLD}, d_model = {width}", old, 1.0, 0.5, "adapted: about 1"),
                near(f"std of the scores, {NEW}, d_model = {width}", new, 1.0, 0.5, "adapted: about 1"),
            ),
            answer=(
                f"It depends on the version. Up to 3.14 the scores start at {number(mean(old))}, {1 / mean(old):.0f} "
                f"times too small, since d_model cancels; from 3.15 on at {number(mean(new))}. {seen}"
            ),
        )

    def _llama(self) -> Claim:
        quantity, source = "initializer_range of transformers' LlamaConfig", "as is said"
        if installed("transformers"):
            value = float(defaults("llama").initializer_range)
            comparison = near(quantity, [value], 0.02, 1e-9, source)
            answer = (
                f"The config of the class has {value:g}. It is a default of a port and says nothing of "
                "how the published weights were trained. At d_model = 4096 it gives queries of rms "
                f"{value * 64:.2f} for unit inputs."
            )
        else:
            comparison = not_measured(quantity, 0.02, 1e-9, source, "transformers is not installed")
            answer = "Not looked up here: transformers is not installed."
        text = "Llama starts with a standard deviation of 0.02."
        return Claim(text=text, heard="a common explanation", comparisons=(comparison,), answer=answer)

    def _small(self, found: Spreads) -> Claim:
        wide = max(self.widths)
        by_seed = list(zip(*(by_width[wide] for by_width in found.values()), strict=True))
        ratios = [max(values) / min(values) for values in by_seed]
        return Claim(
            text="All of them start with weights of order 0.01, so it makes no difference.",
            heard="a common explanation",
            comparisons=(at_most(f"largest over smallest std of the scores, d_model = {wide}", ratios, 2.0, "alike"),),
            answer=(
                f"At d_model = {wide} the scores of the six rules differ {number(mean(ratios))}-fold, from "
                f"{number(mean(map(min, by_seed)))} to {number(mean(map(max, by_seed)))}. What counts is the "
                "weight's standard deviation times the root of its inputs, not the weight."
            ),
        )

    def _figure(self, found: Spreads) -> Lines:
        return Lines(
            title=f"Spread of the scores at the start, heads of width {self.d_k}",
            x=Axis(label="d_model", log=True),
            y=Axis(label="standard deviation", log=True),
            series=curves(found, {name: lambda width, name=name: self._law(name, width) for name in found}),
        )

    def _marks(self, built: Built) -> Rows:
        shape, names = self.shapes[0], tuple(ATTENTIONS)
        return Rows(
            title=f"Installed classes, d_model = {shape[0]}",
            names=names,
            x=Axis(label="standard deviation of the scores", log=True),
            series=marks(
                "std",
                names,
                {name: each(by_shape[shape], "scores") for name, by_shape in built.items()},
                {name: RULES[rule_of(name)].law(*shape) for name in names},
            ),
        )

    def _weights(self) -> Table:
        return Table(
            caption="Standard deviation of the weights of query / key, by d_model × heads × d_k",
            columns=("rule", *(" × ".join(map(str, shape)) for shape in self.shapes)),
            rows=tuple(
                (name, *(" / ".join(map(number, rule.stds(*shape))) for shape in self.shapes))
                for name, rule in RULES.items()
            ),
        )

    def _table(self, built: Built) -> Table:
        def cell(found: list[Statistics]) -> str:
            return f"{average(found, 'query'):.4f}, {average(found, 'scores'):.4f}" if found else "–"

        return Table(
            caption="Installed classes: rms of a query, std of the scores, by d_model × heads × d_k",
            columns=("class", *(" × ".join(map(str, shape)) for shape in self.shapes)),
            rows=tuple(
                (name, *(cell(by_shape.get(shape, [])) for shape in self.shapes)) for name, by_shape in built.items()
            ),
        )


FREE = (KERAS, "transformers llama", "transformers t5")
"""Classes in which heads · d_k need not be d_model."""
NO_KERAS = "Keras is not installed here: its classes were not measured, these numbers are drawn by its rules."


def sizes(attention: Attention, d_k: int, tokens: int, draw: torch.Generator) -> Statistics:
    """Of unit inputs: the rms of their queries, and the standard deviation of the scores within a row."""
    x = torch.randn(tokens, attention.query.shape[0], generator=draw)
    flat = (x @ weight for weight in (attention.query, attention.key))
    query, key = (one.unflatten(-1, (-1, d_k)).transpose(0, 1) for one in flat)  # (heads, tokens, d_k)
    return {"query": rms(query), "scores": math.sqrt((attention.scale * query @ key.mT).var(-1).mean().item())}
