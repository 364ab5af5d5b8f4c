"""The second reading of a running text: its ids on disk, with a tokenizer that was learnt from its training part."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from surd.data.corpus import DataSettings
from surd.data.documents import write_documents
from surd.data.made import made
from surd.data.progress import Progress
from surd.data.text import TextSurvey
from surd.data.tokenizer import BPE, Tokenizer, TokenizerKind, Unigram, learn
from surd.data.windows import Windows, write_text_index
from surd.errors import SurdError


def learn_text_tokenizer(
    part: TokenizerKind, survey: TextSurvey, fit: bool = False, symbols: Sequence[str] = ()
) -> Tokenizer:
    """Learns the tokenizer from training lines alone, subwords from a sample of them; `fit` as in `learn`."""
    lines = survey.sample if isinstance(part, BPE | Unigram) else survey.training_lines()
    try:
        return learn(part, lines, fit, symbols)
    except SurdError as error:
        raise SurdError(f"tokenizer.target.{error}") from None


def prepare_text(settings: DataSettings, tokenizer: Tokenizer, survey: TextSurvey, folder: Path | str) -> Windows:
    """Writes the ids of both parts into `folder`; when it fails or is interrupted, the folder is gone again.

    What a kill has left of the training part is gone on with, where it was made of the same lines.
    """
    with made(folder) as new:
        progress = Progress(new, [settings.document, hashlib.sha256(tokenizer.content).hexdigest()])
        train = write_documents(new, "train", _Lines(survey), tokenizer, settings.document, progress)
        refuse_short(survey, train.tokens)
        held_out = write_documents(new, "held_out", survey.held_out_lines(), tokenizer, settings.document)
        write_text_index(new, train, held_out, survey.report)
    return Windows(folder, settings.context)


@dataclass(frozen=True)
class _Lines:
    """The lines to train on, as often as they are asked for."""

    survey: TextSurvey

    def __iter__(self) -> Iterator[str]:
        return self.survey.training_lines()


def refuse_short(survey: TextSurvey, tokens: int) -> None:
    """Refuses a text that does not fill one window; lines, which are windows of their own, may be as short as any."""
    context = survey.settings.context
    if survey.settings.document == "text" and tokens < context:
        raise SurdError(
            f"{survey.text.name}: {tokens:,} tokens to train on, fewer than the {context:,} of one window "
            "(data.context); more text is needed, or a shorter context"
        )
