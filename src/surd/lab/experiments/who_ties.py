"""Which public architectures tie their output to their embedding, and which multiply what goes in or comes out?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from surd.interchange.installed import defaults, small_model
from surd.interchange.packages import installed
from surd.lab.experiment import Experiment, Findings
from surd.lab.figure import Axis, Rows, marks
from surd.lab.finding import Claim, Comparison, Table, at_least, at_most, near, not_measured, number
from surd.lab.samples import mean
from surd.measure.probe import probe
from surd.seed import derive

LIBRARY = "transformers"
HEADS, D_K = 3, 64
# fmt: off
KINDS = (
    "gpt2", "openai-gpt", "ctrl", "gptj", "gpt_neox", "gpt_bigcode", "opt", "bloom", "xglm", "biogpt", "mpt", "falcon",
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo2",
    "granite", "cohere", "stablelm", "starcoder2", "nemotron", "persimmon", "smollm3", "glm", "exaone4",
    "t5", "mt5", "bart", "mbart", "marian", "pegasus", "m2m_100", "blenderbot",
)
# fmt: on
SCALED_IN_CODE = ("gemma", "gemma2", "gemma3_text", "ctrl")
"""Types that multiply rows by √d_model without a setting; others have `scale_embedding` or `embedding_multiplier`."""


@dataclass(frozen=True, kw_only=True)
class Class:
    """What the config of a class says, and what a fresh model of it does, at one width."""

    declared_tie: bool
    declared_std: float
    declared_multiplier: float
    tied: bool
    multiplier: float
    """Of rows."""
    head: float
    """Of logits."""
    stds: tuple[float, ...]
    """Of the table, for each seed."""


@dataclass(frozen=True, kw_only=True)
class WhoTies(Experiment):
    """Builds a small fresh model of each class, looks whether output and embedding are one, and takes both factors."""

    prediction: ClassVar[str] = (
        "A class does what its config says: output and embedding are one matrix where tie_word_embeddings is set, rows "
        "are multiplied by √d_model where scale_embedding is set or the paper has it (Gemma, CTRL), tables start at "
        "the declared standard deviation, and T5 divides its tied logits by √d_model. All these are defaults of a "
        "library: a published model may have been trained with others."
    )
    sources: ClassVar[tuple[str, ...]] = (
        "The configs and classes of transformers, as installed: defaults, not statements about published weights.",
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.4; Press & Wolf 2017 (arXiv 1608.05859): tying.",
        "Raffel et al. 2020 (arXiv 1910.10683): T5. Gemma Team 2024 (arXiv 2403.08295): tied, rows times √d_model. "
        "Keskar et al. 2019 (arXiv 1909.05858): CTRL, the same.",
    )

    kinds: tuple[str, ...] = KINDS
    """Model types, by the names that the library gives them."""
    d_model: int = HEADS * D_K
    """Width of the small models."""

    def measure(self, seeds: Sequence[int]) -> Findings:
        if not installed(LIBRARY):
            return Findings(comparisons=tuple(self._unmeasured()), claims=(), figures=())
        found = {kind: self._built(kind, seeds) for kind in self.kinds}
        return Findings(
            comparisons=tuple(self._compared(found)),
            claims=(self._llama(found), self._ties(found), self._multiplies(found), self._both(found)),
            figures=(self._figure(found),),
            tables=(self._table(found),),
            notes=(
                "The types are a choice of well-known ones with a text in and a text out; shares are shares of it.",
                "Only the draw of a table is random: ties and factors are read from the models of the first seed.",
            ),
            versions={LIBRARY: installed(LIBRARY) or ""},
        )

    def _built(self, kind: str, seeds: Sequence[int]) -> Class:
        models = [small_model(kind, self.d_model, HEADS, D_K, derive(seed, self.name, kind)) for seed in seeds]
        trace, usual = probe(models[0]), defaults(kind)
        table, head = trace.embeddings[0], trace.head
        assert head is not None and table.multiplier is not None, kind
        return Class(
            declared_tie=usual.tie_word_embeddings,
            declared_std=_first(usual, ("initializer_range", "init_std", "initializer_factor")),
            declared_multiplier=self._declared_multiplier(kind, usual),
            tied=any(tie.same_parameter and tie.second == head.weight for tie in trace.ties),
            multiplier=table.multiplier,
            head=head.multiplier,
            stds=tuple(model.get_parameter(table.table).std().item() for model in models),
        )

    def _declared_multiplier(self, kind: str, usual: Any) -> float:
        if kind in SCALED_IN_CODE or getattr(usual, "scale_embedding", False):
            return math.sqrt(self.d_model)
        return float(getattr(usual, "embedding_multiplier", 1.0))

    def _compared(self, found: Mapping[str, Class]) -> Iterator[Comparison]:
        classes, count = found.values(), len(self.kinds)
        yield near(TIED, [sum(one.tied == one.declared_tie for one in classes)], count, 0.0, "tie_word_embeddings")
        right = sum(math.isclose(one.multiplier, one.declared_multiplier, rel_tol=1e-3) for one in classes)
        yield near(MULTIPLIED, [right], count, 0.0, "scale_embedding, embedding_multiplier, Gemma's and CTRL's papers")
        drawn = zip(*([abs(std / one.declared_std - 1) for std in one.stds] for one in classes), strict=True)
        yield at_most(DRAWN, map(max, drawn), 0.02, "initializer_range, init_std or initializer_factor")
        if "t5" in found:
            root = self.d_model**-0.5
            yield near("factor on the logits of t5", [found["t5"].head], root, 1e-3 * root, "1/√d_model, tied")

    def _unmeasured(self) -> Iterator[Comparison]:
        for quantity in (TIED, MULTIPLIED):
            yield not_measured(quantity, len(self.kinds), 0.0, "its config", f"{LIBRARY} is not installed")

    def _llama(self, found: Mapping[str, Class]) -> Claim:
        return Claim(
            text="Llama has an output layer of its own.",
            heard="a common statement",
            comparisons=(
                near("llama is tied (1) or not (0)", [float(found["llama"].tied)], 0.0, 0.0, "a layer of its own"),
            ),
            answer="The default of the class is no tie. The flag stands in the config of each published model.",
        )

    def _ties(self, found: Mapping[str, Class]) -> Claim:
        tied = [kind for kind, one in found.items() if one.tied]
        return Claim(
            text="A Transformer's output layer is its embedding.",
            heard="Vaswani et al. 2017, section 3.4, taken as what models do",
            comparisons=(at_least("share of classes that are tied", [len(tied) / len(found)], 0.9, "nearly all"),),
            answer=(
                f"{len(tied)} of {len(found)} are, by default. Not tied: "
                f"{', '.join(kind for kind in found if kind not in tied)}."
            ),
        )

    def _multiplies(self, found: Mapping[str, Class]) -> Claim:
        scaled = [kind for kind, one in found.items() if one.multiplier > 1.5]
        return Claim(
            text="A Transformer multiplies its embeddings by √d_model.",
            heard="Vaswani et al. 2017, section 3.4, taken as what models do",
            comparisons=(
                at_least(
                    "share of classes that multiply", [len(scaled) / len(found)], 0.5, "at least every second one"
                ),
            ),
            answer=f"{len(scaled)} of {len(found)} do, by default: {', '.join(scaled)}.",
        )

    def _both(self, found: Mapping[str, Class]) -> Claim:
        tied = [one for one in found.values() if one.tied]
        near_one = [one for one in tied if 0.25 < mean(one.stds) * one.multiplier < 4]
        return Claim(
            text="Where the table is shared and so small, the input side makes up for it.",
            heard="the reason often given for √d_model",
            comparisons=(
                at_least(
                    "share of tied classes in which a token enters with an rms between ¼ and 4",
                    [len(near_one) / len(tied)],
                    0.5,
                    "at least every second one",
                ),
            ),
            answer=(
                f"{len(near_one)} of {len(tied)} tied classes do, by √d_model or by a table of N(0, 1); in the others "
                f"a token enters with the table's own {number(min(mean(one.stds) for one in tied))} or little more, "
                "and it is left to the first norm, or to training, to make it larger."
            ),
        )

    def _figure(self, found: Mapping[str, Class]) -> Rows:
        measured = {kind: [std * one.multiplier for std in one.stds] for kind, one in found.items()}
        law = {kind: one.declared_std * one.declared_multiplier for kind, one in found.items()}
        return Rows(
            title=f"Size of a token as it enters, d_model = {self.d_model}",
            names=self.kinds,
            x=Axis(label="rms of the row, times its factor", log=True),
            series=marks("rms", self.kinds, measured, law),
        )

    def _table(self, found: Mapping[str, Class]) -> Table:
        def factor(value: float) -> str:
            named = {self.d_model**0.5: "√d", self.d_model**-0.5: "1/√d", 1.0: "1"}
            return next(
                (name for known, name in named.items() if math.isclose(value, known, rel_tol=1e-3)), f"{value:g}"
            )

        return Table(
            caption="Class defaults, as fresh small models of each have them",
            columns=("type", "tied", "rows times", "logits times", "std of the table (declared)"),
            rows=tuple(
                (
                    kind,
                    "yes" if one.tied else "no",
                    factor(one.multiplier),
                    factor(one.head),
                    f"{number(mean(one.stds))} ({one.declared_std:g})",
                )
                for kind, one in found.items()
            ),
        )


TIED = "classes that are tied, or not, as their config says"
MULTIPLIED = "classes that multiply their rows as their config or paper says"
DRAWN = "largest distance of a table's std from the declared one, as a share of it"


def _first(config: Any, names: Sequence[str]) -> float:
    """The first of these settings that a config has."""
    return next(float(getattr(config, name)) for name in names if hasattr(config, name))
