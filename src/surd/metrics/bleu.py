"""BLEU and chrF by sacreBLEU, on detokenised text unless told otherwise, with sacreBLEU's own signatures."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from surd.metrics.score import Metric, References, Score, check_lines

if TYPE_CHECKING:
    import sacrebleu.metrics.base

Tokenization = Literal["13a", "none", "char", "intl", "zh"]
"""How sacreBLEU cuts words: `13a` for running text, `none` for text that is tokenised already (its `-tok none`)."""


@dataclass(frozen=True, kw_only=True)
class SacreBLEUMetric(Metric):
    """A metric that sacreBLEU computes: the same object serves the score and the paired bootstrap."""

    higher_is_better: bool = True

    @abstractmethod
    def build(self) -> "sacrebleu.metrics.base.Metric":
        """sacreBLEU's own metric object; sacreBLEU is imported here and not before."""

    def __call__(self, hypotheses: Sequence[str], references: References) -> Score:
        check_lines(hypotheses, references)
        metric = self.build()
        value = metric.corpus_score(list(hypotheses), reference_streams(references)).score
        return Score(name=self.name, value=value, signature=str(metric.get_signature()), higher_is_better=True)


@dataclass(frozen=True, kw_only=True)
class BLEU(SacreBLEUMetric):
    """Corpus BLEU, 0 to 100 (Papineni et al. 2002; Post 2018)."""

    name: str = "BLEU"
    lowercase: bool = False
    tokenize: Tokenization = "13a"

    def build(self) -> "sacrebleu.metrics.base.Metric":
        import sacrebleu

        # force: its warning about tokenised full stops is talk, and a metric does not talk
        return sacrebleu.BLEU(lowercase=self.lowercase, tokenize=self.tokenize, force=True)


@dataclass(frozen=True, kw_only=True)
class ChrF(SacreBLEUMetric):
    """Corpus chrF2, 0 to 100: character n-grams up to six, recall weighs twice (Popović 2015)."""

    name: str = "chrF2"

    def build(self) -> "sacrebleu.metrics.base.Metric":
        import sacrebleu

        return sacrebleu.CHRF()


def reference_streams(references: References) -> list[list[str]]:
    """References turned from all of a line to one stream per rank, as sacreBLEU wants them; gaps are None."""
    ranks = max(map(len, references))
    streams = [[lines[rank] if rank < len(lines) else None for lines in references] for rank in range(ranks)]
    return cast(list[list[str]], streams)  # sacreBLEU leaves out None, though its annotations do not say so
