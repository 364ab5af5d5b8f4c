"""Text in, text out: lines are encoded, searched for or drawn, and written as text again, in order, one for one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

import numpy as np
import torch

from surd.data.batch import by_length, cut
from surd.data.clean import tidy
from surd.data.tokenizer import TokenizerPair
from surd.decode.decoding import Decoding
from surd.decode.ensemble import Ensemble
from surd.decode.generate import Wishes, generate, generate_unlooped
from surd.models.seq2seq import Seq2Seq
from surd.nn.position import LearnedPosition
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS, UNK
from surd.run.long_lines import Section, sections
from surd.run.outputs import Output, Written, outputs_of_line, spelt, with_alignments
from surd.run.prefixes import encoded_prefixes, refuse_too_long, with_prefixes
from surd.run.request import PLAIN, Request
from surd.seed import derive

LINES_AT_ONCE = 2048
"""Lines that are read before the first is answered: enough to sort by length, few enough for any input to stream."""


@dataclass(frozen=True, kw_only=True)
class Answer(Output):
    """What the model makes of one line: the best output, and what there is to know besides."""

    others: tuple[Output, ...] = ()
    """The further outputs, where several were asked for."""
    looped: int = 0
    """How many of the outputs, as first found, went in circles: others are in their place."""
    parts: int = 1
    """How many parts the line was translated in: several when it is longer than what the model was trained on."""
    unknown: int = 0
    """Symbols of the source that are not in the vocabulary; with byte fallback there are none."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All of them, best first."""
        return (self, *self.others)

    @property
    def parts_warning(self) -> str:
        """What to say when the line was cut."""
        return f"longer than what the model was trained on: translated in {self.parts:,} parts"


@dataclass(frozen=True, kw_only=True)
class Scribe:
    """A model with its tokenizers: what turns lines into lines."""

    model: Seq2Seq | Ensemble
    tokenizers: TokenizerPair
    longest: int
    """Tokens of the longest source that the model was trained on."""
    symbols: tuple[str, ...] = ()
    """Placeholders that a long line is not cut within."""

    def answer(
        self,
        lines: Iterable[str],
        decoding: Decoding,
        batch_tokens: int,
        at_once: int = LINES_AT_ONCE,
        request: Request = PLAIN,
        prefixes: str | Iterable[str] = "",
    ) -> Iterator[Answer]:
        """One answer a line, in order; an empty line stays empty and does not touch the model.

        `batch_tokens` bounds what is decoded together, lines × longest source × beam; `at_once` lines are read ahead.
        The outputs of a line begin with its prefix: there is one for each line, or one for all.
        """
        rest = iter(lines)
        chunks = iter(lambda: list(islice(rest, at_once)), [])
        return self.answer_chunks(chunks, decoding, batch_tokens, request, prefixes)

    def answer_chunks(
        self,
        chunks: Iterable[Sequence[str]],
        decoding: Decoding,
        batch_tokens: int,
        request: Request = PLAIN,
        prefixes: str | Iterable[str] = "",
    ) -> Iterator[Answer]:
        """The same for lines that come in chunks: one is answered before the next is asked for."""
        first = 1
        for chunk, beginnings in with_prefixes(chunks, prefixes):
            yield from self.answer_chunk(chunk, decoding, batch_tokens, request, beginnings, first)
            first += len(chunk)

    def answer_chunk(
        self,
        lines: Sequence[str],
        decoding: Decoding,
        batch_tokens: int,
        request: Request = PLAIN,
        prefixes: Sequence[str] = (),
        first: int = 1,
    ) -> list[Answer]:
        """The same for lines that are all there: they are worked on together, those too long in parts.

        `first` is the number of the first of them in all that is read: draws follow from it.
        """
        encoded = self.encode_sources(lines)
        cut = [self._cut(line, ids) for line, ids in zip(lines, encoded, strict=True)]
        # What no cut makes short enough, a single character, keeps what the model has positions for.
        parts = self.encode_sources([part.text for line in cut for part in line])
        sources = [[*ids[: self.longest], EOS] for ids in parts]
        owners = [(line, part) for line, own in enumerate(cut) for part in range(len(own))]
        decoding = decoding.within(self.positions) if sources else decoding
        wishes = self._wishes(owners, sources, decoding, request, prefixes, first)
        asked = (self.model, sources, decoding, batch_tokens, request.n_best, wishes)
        found, looped = generate_unlooped(*asked) if request.guard else (generate(*asked), {})
        written = spelt(self.tokenizers.target, found)
        if request.align:
            written = with_alignments(self.model, self.tokenizers, sources, written, batch_tokens)
        circled: dict[int, set[int]] = {}
        for number, places in looped.items():
            circled.setdefault(owners[number][0], set()).update(places)
        outputs = iter(written)
        return [
            self._joined(own, list(islice(outputs, len(own))), ids.count(UNK), len(circled.get(number, ())), decoding)
            for number, (own, ids) in enumerate(zip(cut, encoded, strict=True))
        ]

    def _wishes(
        self,
        owners: Sequence[tuple[int, int]],
        sources: Sequence[Sequence[int]],
        decoding: Decoding,
        request: Request,
        prefixes: Sequence[str],
        first: int,
    ) -> Wishes:
        """What is asked for each part, of which `owners` tells line and place; the first of a line has its prefix."""
        beginnings: list[Sequence[int]] = []
        if any(prefixes):
            lines = encoded_prefixes(self.tokenizers.target, prefixes, first)
            for (line, part), source in zip(owners, sources, strict=True):
                beginnings.append(() if part else lines[line])
                refuse_too_long(first + line, beginnings[-1], decoding.limit(len(source)))
        if request.sampling is None:
            return Wishes(prefixes=beginnings)
        draws = range(request.n_best)
        seeds = [[derive(request.seed, "draw", first + line, part, draw) for draw in draws] for line, part in owners]
        return Wishes(prefixes=beginnings, sampling=request.sampling, seeds=seeds)

    def _cut(self, line: str, ids: Sequence[int]) -> list[Section]:
        """The parts of a line, one where it is short enough; an empty line has none."""
        if len(ids) <= self.longest:
            return [Section(line)] if ids else []
        source = self.tokenizers.source
        return sections(tidy(line), lambda text: len(source.encode(text)) <= self.longest, self.symbols)

    def _joined(
        self,
        parts: Sequence[Section],
        written: Sequence[Sequence[Written]],
        unknown: int,
        looped: int,
        decoding: Decoding,
    ) -> Answer:
        """The answer to a line from what was written for its parts, scored as one output."""
        if not parts:
            return Answer(text="", score=0.0)
        best, *others = outputs_of_line(parts, written, self.tokenizers, decoding)
        told = {"others": tuple(others), "looped": looped, "parts": len(parts), "unknown": unknown}
        return Answer(text=best.text, score=best.score, alignment=best.alignment, **told)

    @cached_property
    def positions(self) -> int | None:
        """Positions that the model has learnt, and so the longest output; none where it needs to learn none."""
        members = self.model.members if isinstance(self.model, Ensemble) else (self.model,)
        learnt = [member.architecture.position for member in members]
        return min((one.length for one in learnt if isinstance(one, LearnedPosition)), default=None)

    def encode_sources(self, lines: Sequence[str]) -> list[list[int]]:
        """Source ids of each line, without EOS; an empty line has none."""
        return self.tokenizers.source.encode_all([tidy(line) for line in lines])

    def nll(self, sources: Sequence[str], targets: Sequence[str], batch_tokens: int) -> tuple[float, int]:
        """Sum of negative log-likelihoods (nats, unsmoothed) of the targets, and the number of their tokens.

        EOS counts. Pairs with an empty source have no answer of the model and are left out.
        """
        pairs = [
            ([*source[: self.longest], EOS], [*target, EOS])
            for source, target in zip(
                self.encode_sources(sources), self.tokenizers.target.encode_all([*map(tidy, targets)]), strict=True
            )
            if source
        ]
        lengths = np.array([(len(source), len(target)) for source, target in pairs], dtype=np.int64).reshape(-1, 2)
        order = by_length(lengths[:, 0], lengths[:, 1], np.arange(len(pairs)))
        bounds = cut(lengths[order, 0], lengths[order, 1], batch_tokens)
        total, tokens = 0.0, 0
        for first, last in pairwise(bounds):
            batch = [pairs[number] for number in order[first:last]]
            found = self._loss([source for source, _ in batch], [target for _, target in batch])
            total, tokens = total + found[0], tokens + found[1]
        return total, tokens

    @torch.no_grad()
    def _loss(self, sources: list[list[int]], labels: list[list[int]]) -> tuple[float, int]:
        device = next(self.model.parameters()).device
        source, target = Ragged.from_lists(sources), Ragged.from_lists([[BOS, *label[:-1]] for label in labels])
        follows = Ragged.from_lists(labels).tokens
        sums = self.model.loss(source.to(device), target.to(device), follows.to(device))
        return float(sums.nll), sums.tokens
