"""Text as in the published Multi30k figures: lower-cased, Moses-normalised, Moses-tokenised, nothing escaped."""

from collections.abc import Iterable
from pathlib import Path

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

from texts import read_lines, write_lines

WORDS = {"en": 377_534, "de": 360_706}
"""Words of the training text that was prepared for the published figures: another count means other data or rules."""
PIECES = {"en": 397_793, "de": 400_507}
"""Subword pieces of the same text in the published preparation (subword-nmt, 10,000 joint merges)."""
PIECES_TOLERANCE = 0.025
"""SentencePiece counts a little more than subword-nmt on the same text; further off is other data."""
SPLITS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
"""Our short names of the parts, and the names of their files in the data folder."""


def tokenise(text: Iterable[str], language: str) -> list[str]:
    """Lower-case, then punctuation made uniform, then words and marks apart by one space."""
    normaliser, tokeniser = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [tokeniser.tokenize(normaliser.normalize(line.lower()), escape=False, return_str=True) for line in text]


def detokenise(text: Iterable[str], language: str) -> list[str]:
    """Undoes the tokenisation, not the lower case."""
    detokeniser = MosesDetokenizer(lang=language)
    return [detokeniser.detokenize(line.split(), unescape=False) for line in text]


def prepare(data: Path, folder: Path) -> dict[str, int]:
    """Writes `train|dev|test.en|de` into `folder` unless they are there; gives the words of the training text."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for language in WORDS:
        for ours, theirs in SPLITS.items():
            path = folder / f"{ours}.{language}"
            if not path.is_file():
                write_lines(path, tokenise(read_lines(data / f"{theirs}.{language}.gz"), language))
        counts[language] = sum(len(line.split()) for line in read_lines(folder / f"train.{language}"))
    if counts != WORDS:
        raise SystemExit(f"{data}: expected the words {WORDS}, found {counts}: other data, or other tokenising")
    return counts


def check_pieces(pieces: dict[str, int]) -> None:
    """Stops when the subword pieces of the training text are too far from the published preparation."""
    for language, published in PIECES.items():
        off = pieces[language] / published - 1
        print(f"pieces {language}: {pieces[language]:,} ({off:+.1%} against the published {published:,})")
        if abs(off) > PIECES_TOLERANCE:
            raise SystemExit(f"pieces {language}: more than {PIECES_TOLERANCE:.1%} off the published preparation")
