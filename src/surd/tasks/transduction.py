"""Transduction: a word to a word (inflection, correction, transliteration), in characters; accuracy selects, the
character error rate stands beside it."""

from collections.abc import Mapping
from math import inf
from statistics import median
from typing import ClassVar

from surd.data.survey import Survey
from surd.metrics.error_rate import accuracy, character_error_rate
from surd.metrics.score import Metric, References
from surd.tasks.task import PairTask

LONGEST_WORD = 40
"""Characters that nearly all targets have at most, to be words."""
LONG_WORD = 15
"""Characters that half of the targets have at most, to be words: a sentence written without blanks has more."""
WORDS = 0.75
"""Share of one-word lines from which a side counts as words."""
KEPT = 0.35
"""Share of its letter pairs that a word keeps when it is changed; a short translation keeps less."""


class Transduction(PairTask):
    """Words and what becomes of them, letter by letter; what is to be done may be part of the source."""

    name: ClassVar[str] = "transduction"
    drop_copies: ClassVar[bool] = False  # many a word stays as it is when it is inflected or corrected
    sizes: ClassVar[tuple[tuple[float, str], ...]] = ((2_000, "nano"), (inf, "letters"))
    tokenizers: ClassVar[Mapping[str, tuple[str, str]]] = {
        side: ("characters", "words are changed letter by letter") for side in ("source", "target")
    }

    def reason(self, survey: Survey) -> str | None:
        one_word = sum(len(target.split()) == 1 for _, target in survey.sample) / max(len(survey.sample), 1)
        kept = median(shared_pairs(source, target) for source, target in survey.sample) if survey.sample else 0.0
        if survey.target_length_95 > LONGEST_WORD:
            return None
        if survey.one_word_sources >= WORDS and one_word >= WORDS and survey.target_length_50 <= LONG_WORD:
            return f"{one_word:.0%} of the targets and {survey.one_word_sources:.0%} of the sources are one word"
        if kept >= KEPT:
            return f"the targets are short, and {kept:.0%} of the letter pairs of the median one stand in its source"
        return None

    def metrics(self, references: References) -> tuple[Metric, ...]:
        return accuracy, character_error_rate


def shared_pairs(source: str, target: str) -> float:
    """The share of the target's different pairs of neighbouring letters that the source has too."""
    pairs = {target[place : place + 2] for place in range(len(target) - 1)}
    return sum(pair in source for pair in pairs) / max(len(pairs), 1)
