"""The second pass over a corpus: texts become ids on disk, with tokenizers that were learnt from its training side."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from surd.data.clean import CAUSES, EXAMPLES, Dropped, Example, Fate
from surd.data.corpus import DataSettings, Pair
from surd.data.hold_out import gather_references
from surd.data.made import made
from surd.data.progress import Progress
from surd.data.stream import Prepared, TableWriter, table_sizes, write_index
from surd.data.survey import FEWEST, Survey, survey
from surd.data.tokenizer import BPE, Tokenizer, TokenizerKind, TokenizerPair, Tokenizers, Unigram, learn
from surd.errors import Faults, SurdError
from surd.part import structure, unstructure

__all__ = ["learn_tokenizers", "prepare", "survey"]

BLOCK = 8192
"""Pairs that are tokenised together."""


def learn_tokenizers(tokenizers: Tokenizers, survey: Survey, fit: bool = False) -> TokenizerPair:
    """Learns the tokenizers of both sides from training pairs alone; `fit` as in `learn`.

    Subwords are learnt from the survey's sample, characters and words from every training pair.
    """
    if tokenizers.joint:
        lines = (text for side in (0, 1) for text in _texts(tokenizers.source, survey, side))
        joint = _learn("tokenizer.source", tokenizers.source, lines, fit, tokenizers.symbols)
        return TokenizerPair(joint, joint)
    learnt, faults = [], []
    for side, part in enumerate((tokenizers.source, tokenizers.target)):
        try:
            path, lines = ("tokenizer.source", "tokenizer.target")[side], _texts(part, survey, side)
            learnt.append(_learn(path, part, lines, fit, tokenizers.symbols))
        except SurdError as error:
            faults.append(str(error))
    if faults:
        raise Faults(faults)
    return TokenizerPair(*learnt)


def prepare(settings: DataSettings, tokenizers: TokenizerPair, survey: Survey, folder: Path | str) -> Prepared:
    """Writes the ids of the usable pairs into `folder`, and the texts that are held out.

    When it fails or is interrupted, the folder is gone again. What a kill has left in it is gone on with, where it was
    made of the same pairs with the same tokenizers, and comes out the same.
    """
    with made(folder) as new:
        _write(settings, tokenizers, survey, new)
    return Prepared(folder)


def _write(settings: DataSettings, tokenizers: TokenizerPair, survey: Survey, folder: Path) -> None:
    progress = Progress(folder, [settings.max_length, *map(_digest, (tokenizers.source, tokenizers.target))])
    begun, blocks = progress.taken_up(lambda: _blocks(survey), partial(_begun, folder))
    long = _Long(limit=settings.max_length, begun=begun)
    held_out: list[Pair] = [] if begun is None else [*begun.held_out]
    sizes = (tokenizers.source.size, tokenizers.target.size)
    with (
        TableWriter(folder, "train", sizes, None if begun is None else begun.train) as train,
        TableWriter(folder, "held_out", sizes, None if begun is None else begun.held) as held,
    ):

        def note() -> None:
            train.sync()
            held.sync()
            state = _State(train=train.about, held=held.about, held_out=tuple(held_out), **long.counts())
            progress.note(unstructure(state))

        for block in blocks:
            rows = _encoded(tokenizers, block, long)
            train.add(*_sides(row for row in rows if not row.held_out))
            held.add(*_sides(row for row in rows if row.held_out))
            held_out.extend(row.pair for row in rows if row.held_out)
            if progress.due:
                note()
        note()
        texts = gather_references(held_out)
        if survey.scan.dev is not None:
            texts = survey.scan.dev
            pairs = [(row.source, reference) for row in texts for reference in row.references]
            block = [(number, True, *pair) for number, pair in enumerate(pairs)]
            held.add(*_sides(_encoded(tokenizers, block, _Long(limit=settings.max_length))))
    long.refuse(survey, train.pairs, held.pairs)
    report = replace(
        survey.report,
        train=train.pairs,
        held_out=sum(len(row.references) for row in texts),
        held_out_sources=len(texts),
        dropped=long.added_to(survey.report.dropped),
    )
    write_index(folder, train.about, held.about, texts, report)


@dataclass(frozen=True, kw_only=True)
class _State:
    """How far the writing of the ids had come."""

    train: dict[str, Any]
    held: dict[str, Any]
    """What the tables hold."""
    held_out: tuple[Pair, ...]
    long: int
    """How many pairs were too long, the length of the shortest of them, and the first few."""
    shortest: int
    examples: tuple[Example, ...]


def _begun(folder: Path, noted: Any) -> _State | None:
    """The state that was noted, where the files on disk hold all that it says."""
    try:
        state = structure(_State, noted)
        sizes = table_sizes(folder, "train", state.train) | table_sizes(folder, "held_out", state.held)
        return state if all(path.stat().st_size >= size for path, size in sizes.items()) else None
    except (SurdError, KeyError, TypeError, OSError):
        return None


def _digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.content).hexdigest()


class _Row(NamedTuple):
    """A pair and its ids."""

    held_out: bool
    pair: Pair
    source: list[int]
    target: list[int]


class _Long:
    """The pairs with more tokens than the limit, counted."""

    def __init__(self, limit: int, begun: _State | None = None) -> None:
        self.limit = limit
        self._count, self._shortest = (0, 0) if begun is None else (begun.long, begun.shortest)
        self._examples: list[Example] = [] if begun is None else [*begun.examples]

    def counts(self) -> dict[str, Any]:
        """The same as a part of the state."""
        return {"long": self._count, "shortest": self._shortest, "examples": tuple(self._examples)}

    def takes(self, tokens: int, number: int, pair: Pair) -> bool:
        """Whether a pair with so many tokens on its longer side is too long; if so it is counted."""
        if tokens <= self.limit:
            return False
        self._shortest = min(tokens, self._shortest or tokens)
        self._count += 1
        if len(self._examples) < EXAMPLES:
            self._examples.append(Example.of(number, *pair))
        return True

    def added_to(self, dropped: tuple[Dropped, ...]) -> tuple[Dropped, ...]:
        """The causes of the survey, with these pairs among those that were too long already by their words."""
        if not self._count:
            return dropped
        cause = CAUSES[Fate.LONG]
        before = next((drop for drop in dropped if drop.cause == cause), Dropped(cause=cause, count=0))
        examples = (*before.examples, *self._examples)[:EXAMPLES]
        mine = Dropped(cause=cause, count=before.count + self._count, examples=examples)
        return (*(drop for drop in dropped if drop.cause != cause), mine)

    def refuse(self, survey: Survey, train: int, held_out: int) -> None:
        """Refuses a corpus of which too little is short enough."""
        if train + (held_out if survey.scan.dev is None else 0) >= FEWEST and train and held_out:
            return
        found = f"the shortest of the others has {self._shortest:,}" if self._count else "no other is left out for it"
        raise SurdError(
            f"{survey.report.name}: {train:,} pairs to train on and {held_out:,} held out have at most "
            f"{self.limit:,} tokens a side (data.max_length), expected at least {FEWEST} together; {found}. "
            f"Raise data.max_length, or split the lines."
        )


def _encoded(tokenizers: TokenizerPair, block: list[tuple[int, bool, str, str]], long: _Long) -> list[_Row]:
    """The pairs of a block that are short enough, with their ids."""
    sources = tokenizers.source.encode_all([source for _, _, source, _ in block])
    targets = tokenizers.target.encode_all([target for _, _, _, target in block])
    return [
        _Row(held_out, (source, target), source_ids, target_ids)
        for (number, held_out, source, target), source_ids, target_ids in zip(block, sources, targets, strict=True)
        if not long.takes(max(len(source_ids), len(target_ids)), number, (source, target))
    ]


def _sides(rows: Iterable[_Row]) -> tuple[list[list[int]], list[list[int]]]:
    rows = list(rows)
    return [row.source for row in rows], [row.target for row in rows]


def _blocks(survey: Survey) -> Iterator[list[tuple[int, bool, str, str]]]:
    pairs = survey.kept()
    while block := list(islice(pairs, BLOCK)):
        yield block


def _texts(part: TokenizerKind, survey: Survey, side: int) -> Iterator[str]:
    """What a tokenizer of one side is learnt from."""
    if isinstance(part, BPE | Unigram):
        yield from (pair[side] for pair in survey.sample)
    else:
        yield from (pair[side] for _, held_out, *pair in survey.kept() if not held_out)


def _learn(path: str, part: TokenizerKind, lines: Iterator[str], fit: bool, symbols: Sequence[str]) -> Tokenizer:
    try:
        return learn(part, lines, fit, symbols)
    except SurdError as error:
        raise SurdError(f"{path}.{error}") from None
