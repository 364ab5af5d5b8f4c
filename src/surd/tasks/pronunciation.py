"""Pronunciation: letters to phones; the share of words said wrongly selects, the phone error rate stands beside it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from surd.data.survey import Survey
from surd.metrics.error_rate import Rate, phone_error_rate, word_error_rate
from surd.metrics.score import Metric, References
from surd.tasks.task import PairTask

_STRESS = re.compile(r"(?<=[A-Z])[012](?=\s|$)")
"""The stress digit behind an ARPAbet vowel: `AH0`, `EY1`."""

FEWEST_SYMBOLS = 1.5
"""Symbols that the mean target has at least, to be a row of phones and not a short word."""
MOST_PHONES = 500
"""Different symbols that an alphabet of sounds has at most, tones and lengths included."""


@dataclass(frozen=True, kw_only=True)
class StressIgnored(Rate):
    """Another rate, for phones without their stress digits: what the literature on English quotes."""

    higher_is_better: bool = False
    of: Rate

    def counts(self, hypothesis: str, references: Sequence[str]) -> tuple[int, int]:
        return self.of.counts(without_stress(hypothesis), [without_stress(line) for line in references])

    def definition(self) -> str:
        return f"stress:ignored|{self.of.definition()}"


class Pronunciation(PairTask):
    """A word a line on the source side, its phones between blanks on the target side; variants are further lines."""

    name: ClassVar[str] = "pronunciation"
    drop_copies: ClassVar[bool] = False  # "a" is said "a" in many an alphabet of sounds
    sizes: ClassVar[tuple[tuple[float, str], ...]] = ((2_000, "nano"), (50_000, "letters"), (inf, "pronunciation"))
    tokenizers: ClassVar[Mapping[str, tuple[str, str]]] = {
        "source": ("characters", "each letter may matter for the sound"),
        "target": ("words", "a phone is a word between blanks"),
    }

    def reason(self, survey: Survey) -> str | None:
        symbols = survey.target_words / survey.usable
        if min(survey.one_word_sources, survey.short_symbol_targets) < 0.9 or symbols < FEWEST_SYMBOLS:
            return None
        if survey.distinct_target_words > MOST_PHONES:
            return None
        return (
            f"{survey.one_word_sources:.0%} of the sources are one word, and the targets are short symbols between "
            f"blanks, {survey.distinct_target_words:,} different ones"
        )

    def metrics(self, references: References) -> tuple[Metric, ...]:
        rates = (word_error_rate, phone_error_rate)
        stressed = any(_STRESS.search(line) for lines in references for line in lines)
        return rates + tuple(StressIgnored(name=f"{rate.name} without stress", of=rate) for rate in rates if stressed)


def without_stress(phones: str) -> str:
    """ARPAbet phones without stress digits; other phones are left as they are."""
    return _STRESS.sub("", phones)
