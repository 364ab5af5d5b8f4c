"""Translation: running text to running text, in subwords; BLEU selects, chrF stands beside it."""

from collections.abc import Mapping
from math import inf
from typing import ClassVar

from surd.data.survey import Survey
from surd.metrics.bleu import BLEU, ChrF
from surd.metrics.score import Metric, References
from surd.tasks.task import PairTask


class Translation(PairTask):
    """Sentences: any pairs that are not single words are taken for them."""

    name: ClassVar[str] = "translation"
    general: ClassVar[bool] = True
    drop_copies: ClassVar[bool] = True  # a sentence equal to its translation was most likely never translated
    sizes: ClassVar[tuple[tuple[float, str], ...]] = (
        (2_000, "nano"),
        (100_000, "tiny"),
        (1_000_000, "small"),
        (inf, "base"),
    )
    tokenizers: ClassVar[Mapping[str, tuple[str, str]]] = {
        side: ("bpe", "subwords know every word by its pieces; BPE makes the shortest sequences")
        for side in ("source", "target")
    }

    def reason(self, survey: Survey) -> str | None:
        return "the sides are running text, not single words"

    def metrics(self, references: References) -> tuple[Metric, ...]:
        return BLEU(), ChrF()
