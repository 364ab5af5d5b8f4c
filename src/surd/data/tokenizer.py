"""Tokenizers: text to ids and back, learnt from the user's own text; SentencePiece, characters and words."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from surd.data.subwords import UNKNOWN, learn_subwords, load_subwords, restore, shield, smallest_size
from surd.data.symbols import frequent, splitter, symbol_faults
from surd.errors import Faults, SurdError
from surd.files import json_bytes, read_bytes, read_json, write_atomic
from surd.nn.special import SPECIALS, UNK
from surd.part import Part


class Tokenizer(ABC):
    """Text to ids and back. Ids 0 to 3 are PAD, BOS, EOS and UNK in every tokenizer; no text is encoded as 0 to 2."""

    size: int
    """How many ids there are, the four special ones included."""
    separator: str = ""
    """What stands between two symbols in a text."""
    suffix: ClassVar[str]
    """Of the file it is saved in."""

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without BOS and EOS."""
        return self.encode_all([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; PAD, BOS and EOS are left out."""
        return self.decode_all([ids])[0]

    @property
    @abstractmethod
    def content(self) -> bytes:
        """All that it is, as it is saved."""

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once."""

    @abstractmethod
    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` for many rows of ids at once."""

    def save(self, folder: Path, name: str) -> None:
        """Writes the tokenizer as one file in `folder`."""
        write_atomic(folder / f"{name}{self.suffix}", self.content)


class Subwords(Tokenizer):
    """A SentencePiece model. With byte fallback decoding is the exact inverse of encoding, whatever the text."""

    suffix: ClassVar[str] = ".model"

    def __init__(self, model: bytes, name: str = "SentencePiece model") -> None:
        self._model = model
        self._processor = load_subwords(model, name)
        self.size = self._processor.get_piece_size()

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([shield(text) for text in texts], num_threads=_threads(len(texts)))

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        plain = [list(row) for row in rows]
        return [restore(text) for text in self._processor.decode(plain, num_threads=_threads(len(plain)))]

    @property
    def content(self) -> bytes:
        return self._model


class Symbols(Tokenizer):
    """A list of symbols: the characters of a text, or its words between single spaces.

    Decoding is the exact inverse where every symbol is known; for words, double and outer spaces are not kept. Among
    characters a symbol of several is one that the user defined.
    """

    suffix: ClassVar[str] = ".json"

    def __init__(self, symbols: Sequence[str], separator: str) -> None:
        self._symbols, self.separator = tuple(symbols), separator
        self._ids = {symbol: number for number, symbol in enumerate(self._symbols, start=len(SPECIALS))}
        self._split = splitter(separator, symbols)
        self.size = len(SPECIALS) + len(self._symbols)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(symbol, UNK) for symbol in self._split(text)] for text in texts]

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.separator.join(self._spelling(token) for token in row if token >= UNK) for row in rows]

    @property
    def content(self) -> bytes:
        return json_bytes({"separator": self.separator, "symbols": list(self._symbols)})

    def _spelling(self, token: int) -> str:
        return UNKNOWN if token == UNK else self._symbols[token - len(SPECIALS)]


@dataclass(frozen=True, kw_only=True)
class BPE(Part, kind="bpe"):
    """Byte pair encoding (Sennrich et al. 2016), learnt by SentencePiece on raw text."""

    size: int = 8000
    """Pieces, the special ones, the symbols and the 256 bytes of byte fallback included."""
    byte_fallback: bool = True
    """Spell characters outside the vocabulary as bytes, so that nothing is unknown and nothing is lost."""
    coverage: float = 0.9999
    """Share of the text's characters that get a piece of their own; the rest is left to byte fallback."""

    def __post_init__(self) -> None:
        _check_subwords(self)

    def learn(self, lines: Iterable[str], fit: bool, symbols: Sequence[str]) -> Tokenizer:
        model = learn_subwords(self.kind, lines, self.size, self.byte_fallback, self.coverage, fit, symbols)
        return Subwords(model)


@dataclass(frozen=True, kw_only=True)
class Unigram(Part, kind="unigram"):
    """Unigram language model pieces (Kudo 2018), learnt by SentencePiece on raw text."""

    size: int = 8000
    """Pieces, the special ones, the symbols and the 256 bytes of byte fallback included."""
    byte_fallback: bool = True
    """Spell characters outside the vocabulary as bytes, so that nothing is unknown and nothing is lost."""
    coverage: float = 0.9999
    """Share of the text's characters that get a piece of their own; the rest is left to byte fallback."""

    def __post_init__(self) -> None:
        _check_subwords(self)

    def learn(self, lines: Iterable[str], fit: bool, symbols: Sequence[str]) -> Tokenizer:
        model = learn_subwords(self.kind, lines, self.size, self.byte_fallback, self.coverage, fit, symbols)
        return Subwords(model)


@dataclass(frozen=True, kw_only=True)
class Characters(Part, kind="characters"):
    """One id a character: for words and their spellings."""

    minimum_count: int = 1
    """A character seen less often than this is unknown: ⁇ is read and written in its place."""

    def __post_init__(self) -> None:
        _at_least_one(minimum_count=self.minimum_count)

    def learn(self, lines: Iterable[str], fit: bool, symbols: Sequence[str]) -> Tokenizer:
        return Symbols(frequent(lines, "", self.minimum_count, symbols), "")


@dataclass(frozen=True, kw_only=True)
class Words(Part, kind="words"):
    """One id a word between spaces: for phones and other text whose symbols stand apart."""

    minimum_count: int = 1
    """A word seen less often than this is unknown: ⁇ is read and written in its place."""
    limit: int = 50_000
    """At most this many words, the symbols and then the most frequent."""

    def __post_init__(self) -> None:
        _at_least_one(minimum_count=self.minimum_count, limit=self.limit)

    def learn(self, lines: Iterable[str], fit: bool, symbols: Sequence[str]) -> Tokenizer:
        words = frequent(lines, " ", self.minimum_count, symbols)
        return Symbols(words[: max(self.limit, len(symbols))], " ")


TokenizerKind = BPE | Unigram | Characters | Words


@dataclass(frozen=True, kw_only=True)
class Tokenizers:
    """The tokenizers of both sides; a language model has that of the target alone."""

    joint: bool = True
    """One vocabulary for both sides, learnt from both; three-way tying needs it."""
    source: TokenizerKind = field(default_factory=BPE)
    target: TokenizerKind = field(default_factory=BPE)
    symbols: tuple[str, ...] = ()
    """Placeholders such as "<url>": one piece on each side, never split, however seldom they occur."""

    def __post_init__(self) -> None:
        faults = [*symbol_faults(self.symbols)]
        if self.joint and self.source != self.target:
            faults.append(
                f"joint: one vocabulary for both sides needs the same tokenizer on both, found {self.source} "
                f"and {self.target}; set joint to false, or both sides to one kind and size"
            )
        if faults:
            raise Faults(faults)


@dataclass(frozen=True)
class TokenizerPair:
    """The learnt tokenizers of both sides; the same object twice when they are joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def save(self, folder: Path | str) -> None:
        """Writes both into a folder, which is made if need be: `joint.*`, or `source.*` and `target.*`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, tokenizer in {"joint": self.source}.items() if self.joint else vars(self).items():
            tokenizer.save(folder, name)

    @classmethod
    def load(cls, folder: Path | str) -> "TokenizerPair":
        folder = Path(folder)
        if any((folder / f"joint{kind.suffix}").exists() for kind in (Subwords, Symbols)):
            joint = load(folder, "joint")
            return cls(joint, joint)
        return cls(load(folder, "source"), load(folder, "target"))


def learn(part: TokenizerKind, lines: Iterable[str], fit: bool = False, symbols: Sequence[str] = ()) -> Tokenizer:
    """The tokenizer of `part` for `lines`, in which each of `symbols` is one piece that is never split.

    A vocabulary larger than the lines allow is refused with the largest possible; with `fit`, for a size that nobody
    asked for, it is made as large as the lines allow.
    """
    return part.learn(lines, fit, symbols)


def load(folder: Path, name: str) -> Tokenizer:
    """The tokenizer that was saved under `name`; a missing or damaged file is refused."""
    model, symbols = folder / f"{name}{Subwords.suffix}", folder / f"{name}{Symbols.suffix}"
    if model.exists():
        return Subwords(read_bytes(model), str(model))
    if not symbols.exists():
        raise SurdError(f"{folder}: no tokenizer named {name}: expected {model.name} or {symbols.name}")
    match read_json(symbols):
        case {"separator": "" | " " as separator, "symbols": [*spellings]} if all(map(_is_text, spellings)):
            return Symbols(spellings, separator)
    raise SurdError(f"{symbols}: damaged, expected a separator and a list of symbols")


def _check_subwords(part: BPE | Unigram) -> None:
    faults = []
    smallest = smallest_size(part.byte_fallback)
    if part.size < smallest:
        faults.append(f"size: expected at least {smallest} (special ids, bytes and one piece), found {part.size}")
    if not 0.98 <= part.coverage <= 1:  # SentencePiece takes no lower share
        faults.append(f"coverage: expected a share between 0.98 and 1, found {part.coverage}")
    if faults:
        raise Faults(faults)


def _at_least_one(**values: int) -> None:
    faults = [f"{name}: expected at least 1, found {value}" for name, value in values.items() if value < 1]
    if faults:
        raise Faults(faults)


def _is_text(value: object) -> bool:
    """Whether a JSON value is text that can be written as UTF-8: JSON can also spell half a surrogate pair."""
    return isinstance(value, str) and bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _threads(rows: int) -> int:
    """Threads for this many rows: starting one costs more than a few rows take."""
    return (os.cpu_count() or 1) if rows >= 1000 else 1
