"""For each setting and each family of a recipe: the values that differ, and the way to look at which it shows."""

from collections.abc import Callable
from dataclasses import dataclass

from recipe.bench import Bench


@dataclass(frozen=True)
class Shown:
    """A value that shows, held against another: the default, or `before`."""

    value: str
    by: Callable[[Bench, tuple[str, ...]], object] = Bench.weights
    before: str | None = None
    beside: tuple[str, ...] = ()
    """Words on both sides, without which nothing could show."""


LOOKS = ("training.steps=6", "training.evaluate_every=2", "training.watch_every=3")
SIDES = ("tokenizer.source.size=310", "tokenizer.target.size=310")
FILES = ("data.source=@sides.src",)
SETTINGS = {
    "task": Shown("translation", Bench.planned, before="transduction"),
    "seed": Shown("2"),
    "data.source": Shown("@other.tsv", Bench.read),
    "data.target": Shown("@sides.tgt", Bench.read, before="@sides.src", beside=FILES),
    "data.dev_source": Shown("@other.tsv", Bench.read),
    "data.dev_target": Shown(
        "@others.tgt",
        Bench.read,
        before="@others.src",
        beside=(*FILES, "data.target=@sides.tgt", "data.dev_source=@others.src"),
    ),
    "data.columns": Shown("1,3", Bench.read, before="1,2", beside=("data.source=@three.tsv",)),
    "data.held_out": Shown("9", Bench.read),
    "data.max_length": Shown("3", Bench.fitting),
    "data.max_ratio": Shown("40.0", Bench.read, beside=("data.source=@odd.tsv",)),
    "data.text": Shown("@short.txt", Bench.windows),
    "data.dev_text": Shown("@short.txt", Bench.windows),
    "data.document": Shown("line", Bench.windows),
    "data.context": Shown("8", Bench.windows),
    "tokenizer.joint": Shown("true", Bench.cut, beside=SIDES),
    "tokenizer.symbols": Shown('["<url>"]', Bench.cut, beside=SIDES),
    "model.d_model": Shown("48"),
    "model.heads": Shown("4"),
    "model.d_k": Shown("8"),
    "model.key_value_heads": Shown("1"),
    "model.d_ff": Shown("80"),
    "model.encoder_layers": Shown("2"),
    "model.decoder_layers": Shown("2"),
    "model.dropout": Shown("0.3"),
    "model.attention_dropout": Shown("0.2"),
    "model.norm_order": Shown("post"),
    "model.tying": Shown("output"),
    "model.output_bias": Shown("true"),
    "model.cap": Shown("0.5"),
    "model.input_gradient": Shown("0.5"),
    "batch.tokens": Shown("256"),
    "batch.pool": Shown("100"),
    "training.steps": Shown("4", Bench.course, beside=LOOKS[1:], before="6"),
    "training.minutes": Shown("2", Bench.budget, before="1"),
    "training.patience": Shown("1", Bench.course, beside=LOOKS),
    "training.evaluate_every": Shown("3", Bench.course, beside=(LOOKS[0], LOOKS[2]), before="2"),
    "training.accumulation": Shown("2"),
    "training.clip": Shown("0.01"),
    "training.average": Shown("1", Bench.course, beside=LOOKS),
    "training.watch_every": Shown("1", Bench.course, beside=LOOKS[:2], before="3"),
    "training.keep": Shown("1", Bench.course, beside=LOOKS),
    "training.smoothing": Shown("0.2"),
    "training.terms.z": Shown("0.01"),
    "training.precision": Shown("bf16"),
    "decode.beam": Shown("1", Bench.outputs),
    "decode.length_penalty": Shown("0.0", Bench.outputs),
    "decode.factor": Shown("0.0", Bench.outputs),
    "decode.extra": Shown("1", Bench.outputs),
    "sample.temperature": Shown("0.0", Bench.samples),
    "sample.top_k": Shown("1", Bench.samples),
    "sample.top_p": Shown("0.1", Bench.samples),
    "sample.max_length": Shown("3", Bench.samples),
}
"""Settings outside of parts."""


def tokenizer_settings(side: str) -> dict[tuple[str, str], Shown]:
    other = {"source": "target", "target": "source"}[side]
    beside = (f"tokenizer.{other}.size=310",)
    subwords = {
        "size": Shown("315", Bench.cut, "310", beside),
        "byte_fallback": Shown("false, size=60", Bench.cut, "true, size=310", beside),
        "coverage": Shown("0.98, size=320", Bench.cut, "1.0, size=320", beside),
    }
    symbols = {"minimum_count": Shown("20", Bench.cut, "1", beside), "limit": Shown("5", Bench.cut, "50", beside)}
    kinds = {"bpe": subwords, "unigram": subwords, "characters": symbols, "words": symbols}
    return {
        (f"tokenizer.{side}.{name}", kind): shown
        for kind, names in kinds.items()
        for name, shown in names.items()
        if (kind, name) != ("characters", "limit")
    }


PARTS = {
    **tokenizer_settings("source"),
    **tokenizer_settings("target"),
    ("model.scale.factor", "inverse"): Shown("2.0"),
    ("model.scale.value", "fixed"): Shown("0.6", before="0.3"),
    ("model.scale.length", "log_length"): Shown("4", before="9"),
    ("model.query_key_norm.epsilon", "layer"): Shown("0.5"),
    ("model.query_key_norm.epsilon", "rms"): Shown("0.5"),
    ("model.multiplier.value", "fixed"): Shown("3.0", before="2.0"),
    ("model.position.layout", "sinusoidal"): Shown("'halves'"),
    ("model.position.layout", "rotary"): Shown("'interleaved'", before="'halves'"),
    ("model.position.base", "rotary"): Shown("50.0"),
    ("model.position.length", "learned"): Shown("300"),
    ("model.position.std", "learned"): Shown("0.1"),
    ("model.norm.epsilon", "layer"): Shown("0.5"),
    ("model.norm.epsilon", "rms"): Shown("0.5"),
    ("model.init.attention_gain", "transformer"): Shown("1.0"),
    ("model.init.attention_gain", "depth"): Shown("1.0"),
    ("model.init.version", "keras"): Shown("'3.14'"),
    ("model.init.std", "small"): Shown("0.1"),
    ("training.terms.augmented.gamma", "augmented"): Shown("0.9"),
    ("training.terms.augmented.temperature", "augmented"): Shown("2.0"),
    ("training.optimizer.beta1", "adamw"): Shown("0.5"),
    ("training.optimizer.beta2", "adamw"): Shown("0.5"),
    ("training.optimizer.epsilon", "adamw"): Shown("0.01"),
    ("training.optimizer.decay", "adamw"): Shown("0.1"),
    ("training.schedule.rate", "inverse_root"): Shown("0.01, warmup=2", before="0.005, warmup=2"),
    ("training.schedule.warmup", "inverse_root"): Shown("3", before="2"),
    ("training.schedule.factor", "paper"): Shown("0.5, warmup=2", before="1.0, warmup=2"),
    ("training.schedule.warmup", "paper"): Shown("3", before="2"),
    ("training.schedule.rate", "cosine"): Shown("0.01, warmup=1", before="0.005, warmup=1"),
    ("training.schedule.warmup", "cosine"): Shown("3", before="2"),
    ("training.schedule.steps", "cosine"): Shown("3, warmup=1, floor=0.1", before="4, warmup=1, floor=0.1"),
    ("training.schedule.floor", "cosine"): Shown("0.5, warmup=1", before="0.1, warmup=1"),
}
"""Settings of parts, by the kind of the part."""


@dataclass(frozen=True)
class Family:
    """How the members of a family are told apart: each makes something else."""

    by: Callable[[Bench, tuple[str, ...]], object] = Bench.weights
    given: str = ""
    """Settings that stand beside every kind that has them, as in a table of TOML."""
    beside: tuple[str, ...] = ()


SHORT = "size=310"
FAMILIES = {
    "tokenizer.source": Family(Bench.cut, SHORT, ("tokenizer.target.size=310",)),
    "tokenizer.target": Family(Bench.cut, SHORT, ("tokenizer.source.size=310",)),
    "model.scale": Family(given="value=0.3"),
    "model.score": Family(beside=("model.scale=none",)),
    "model.query_key_norm": Family(),
    "model.multiplier": Family(given="value=0.3"),
    "model.position": Family(),
    "model.norm": Family(),
    "model.feedforward": Family(),
    "model.init": Family(),
    "training.terms.augmented": Family(),
    "training.optimizer": Family(),
    "training.schedule": Family(given="warmup=2"),
}
"""All families; of those that may be none, that nothing is chosen shows too."""
ALONE = {"training.optimizer": "a family of one: its settings show, and any other kind is refused by name"}
"""Families with a single member that cannot be left out."""
