"""A training that takes seconds: words to be written backwards, and a model that can just do it."""

import random
from pathlib import Path

from surd.recipe import Draft

WORDS = [
    "model.d_model=32",
    "model.heads=2",
    "model.d_ff=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0.1",
    "batch.tokens=512",
    "training.precision=fp32",
    "training.schedule.kind=inverse_root",
    "training.schedule.rate=0.005",
    "training.schedule.warmup=4",
    "training.average=2",
    "decode.beam=2",
]
"""Settings for it, as words of the command line."""
TORN = [
    "training.steps=40",
    "training.evaluate_every=3",
    "training.patience=3",
    "training.watch_every=1",
    "training.schedule.warmup=30",
    "training.schedule.rate=5",
]
"""More of them: updates grow until the model is torn. Alarms are told, and no evaluation is better than the first, so
that the training stops early, after update 12."""


def write_pairs(path: Path, pairs: int = 600, letters: str = "abcdef", longest: int = 6) -> Path:
    """A file of that many words with their reversals, the same at every call."""
    draw = random.Random(pairs)
    words = ("".join(draw.choices(letters, k=draw.randint(2, longest))) for _ in range(pairs))
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return path


def tiny(source: Path, *words: str) -> Draft:
    """The draft of such a training, with more settings laid over it."""
    draft = Draft().with_values({"task": "transduction", "data.source": str(source)}, "given in a test")
    return draft.with_words([*WORDS, *words])


TEXT_WORDS = [
    "data.context=16",
    "model.d_model=32",
    "model.heads=2",
    "model.d_ff=64",
    "model.decoder_layers=1",
    "model.dropout=0.1",
    "batch.tokens=256",
    "training.precision=fp32",
    "training.schedule.rate=0.005",
    "training.schedule.warmup=4",
    "training.average=2",
    "sample.max_length=40",
]
"""Settings for a small language model."""


def write_text(path: Path, lines: int = 300) -> Path:
    """A file of that many lines of words, the same at every call."""
    draw = random.Random(lines)
    words = ["the", "cat", "dog", "sees", "a", "bird", "and", "sings"]
    path.write_text("".join(" ".join(draw.choices(words, k=draw.randint(2, 6))) + ".\n" for _ in range(lines)))
    return path


def tiny_text(text: Path, *words: str) -> Draft:
    """The draft of a language model of that text, with more settings laid over it."""
    return Draft().with_values({"data.text": str(text)}, "given in a test").with_words([*TEXT_WORDS, *words])
