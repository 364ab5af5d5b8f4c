"""SentencePiece as surd uses it: no normalisation of its own, raw text in, the same raw text out."""

import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from surd.errors import SurdError
from surd.nn.special import BOS, EOS, PAD, SPECIALS, UNK

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

UNKNOWN = "\N{DOUBLE QUESTION MARK}"
"""What the id UNK is written as, by every tokenizer: a character that hardly stands in any text."""

# SentencePiece writes spaces as U+2581 and reads a U+2581 of the text as a space. Texts that hold one are rewritten
# with an escape from the private use area, so that they too come back as they were.
SPACE, ESCAPE, ESCAPED_SPACE, ESCAPED_ESCAPE = "\u2581", "\ue000", "\ue000\ue001", "\ue000\ue002"


def shield(text: str) -> str:
    """`text` without the character that SentencePiece keeps for itself; `restore` is the inverse."""
    if SPACE not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPED_ESCAPE).replace(SPACE, ESCAPED_SPACE)


def restore(text: str) -> str:
    """The text that `shield` was given."""
    if ESCAPE not in text:
        return text
    return text.replace(ESCAPED_SPACE, SPACE).replace(ESCAPED_ESCAPE, ESCAPE)


def smallest_size(byte_fallback: bool) -> int:
    """The least number of pieces: the special ones, the bytes, and one piece of text."""
    return len(SPECIALS) + (256 if byte_fallback else 0) + 1


def load_subwords(model: bytes, name: str) -> "SentencePieceProcessor":
    """A processor for a serialised model; `name` is what a damaged one is called."""
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_proto=model)
    except (RuntimeError, TypeError):
        raise SurdError(f"{name}: damaged, not a SentencePiece model") from None
    if processor.get_piece_size() <= len(SPECIALS):
        raise SurdError(f"{name}: damaged, a SentencePiece model without pieces")
    return processor


def learn_subwords(
    kind: str,
    lines: Iterable[str],
    size: int,
    byte_fallback: bool,
    coverage: float,
    fit: bool,
    symbols: Sequence[str] = (),
) -> bytes:
    """The serialised SentencePiece model of `kind` ("bpe" or "unigram") with `size` pieces, `symbols` among them.

    With `fit` a size that the lines do not allow is moved to the nearest they do; without, it is refused.
    """
    texts = [shield(line) for line in lines if line]
    if not texts:
        raise SurdError("no text to learn a tokenizer from: every line is empty")
    while True:
        try:
            return _train(kind, texts, size, byte_fallback, coverage, symbols)
        except RuntimeError as error:
            allowed, largest = _allowed(error)
        if not fit:
            way_out = f"; ask for {allowed:,} or {'fewer' if largest else 'more'}"
            bound = "at most" if largest else "at least"
            raise SurdError(f"size: this data allows {bound} {allowed:,} pieces, found {size:,}{way_out}")
        # A unigram model may fall short of the size it named as possible, so go on from there, always downwards.
        size = min(allowed, size - 1) if largest else allowed


def _train(
    kind: str, texts: list[str], size: int, byte_fallback: bool, coverage: float, symbols: Sequence[str]
) -> bytes:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        byte_fallback=byte_fallback,
        character_coverage=coverage,
        user_defined_symbols=[shield(symbol) for symbol in symbols],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        max_sentence_length=2**24,
        num_threads=2,
        minloglevel=2,
        unk_surface=UNKNOWN,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        unk_id=UNK,
        pad_piece=SPECIALS[PAD],
        bos_piece=SPECIALS[BOS],
        eos_piece=SPECIALS[EOS],
        unk_piece=SPECIALS[UNK],
    )
    return model.getvalue()


def _allowed(error: RuntimeError) -> tuple[int, bool]:
    """What SentencePiece says is possible, read from its message: the bound, and whether it is the largest size."""
    if found := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", str(error)):
        return int(found[1]), True
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        return int(found[1]), False
    raise error
