"""Translator: a trained run in memory, with lines in and lines out, scores and perplexity."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, overload

from surd.decode.decoding import Decoding
from surd.decode.ensemble import Ensemble
from surd.errors import SurdError
from surd.metrics.perplexity import perplexity
from surd.metrics.score import References, Score
from surd.models.seq2seq import Seq2Seq
from surd.recipe import Recipe
from surd.run.folder import Run
from surd.run.prefixes import refuse_other_number
from surd.run.request import PLAIN, Request, requested
from surd.run.tally import Tally
from surd.run.text import LINES_AT_ONCE, Answer, Scribe
from surd.run.unseen import unseen_by
from surd.tasks import PairTask

BATCH_TOKENS = 16_384
"""Lines × longest source × beam that are decoded together, unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Translator:
    """A trained model with its tokenizers: lines of text in, lines of text out."""

    run: Run
    model: Seq2Seq | Ensemble
    others: tuple[Run, ...] = ()
    """The further runs of an ensemble, whose models write together with that of `run`."""

    @property
    def recipe(self) -> Recipe:
        """Every setting that the model was trained with."""
        return self.run.recipe

    @overload
    def translate(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[str]: ...
    @overload
    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        scores: Literal[True],
    ) -> list[tuple[str, float]]: ...
    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        scores: bool = False,
    ) -> list[str] | list[tuple[str, float]]:
        """The best output for each of `lines`, in their order; an empty line stays empty.

        `beam` and `length_penalty` are the recipe's unless given. With `scores` each output comes as (text, score):
        the sum of log-probabilities in nats by length ** length_penalty, at most 0. A line longer than what the model
        was trained on is translated in parts, with a warning. Settings out of range raise `SurdError`.
        """
        if isinstance(lines, str):
            raise SurdError("translate: expected a list of lines, found one text; write translate([text])")
        answers = list(self.stream(lines, self.decoding(beam, length_penalty)))
        self._warn(lines, answers)
        return [(answer.text, answer.score) for answer in answers] if scores else [answer.text for answer in answers]

    def answers(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        prefix: str | Sequence[str] = "",
        n_best: int = 1,
        align: bool = False,
        sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        guard: bool = True,
    ) -> list[Answer]:
        """What the model makes of each of `lines`, in their order, and all there is to know of it.

        An answer has `text`, `score` and, with `align`, `alignment`: (word of the line, word of the text), from 0. Its
        `outputs` are the `n_best` best that the search found, each with text, score and alignment. An output begins
        with `prefix`, one for all lines or one for each. With `sample` outputs are drawn, by `temperature`, `top_k` and
        `top_p`; the draws follow from `seed` and the number of the line, so a line comes out the same among any others.
        What goes in circles is replaced, unless `guard` is off. Mistakes raise `SurdError`.
        """
        if isinstance(lines, str):
            raise SurdError("answers: expected a list of lines, found one text; write answers([text])")
        if not isinstance(prefix, str):
            refuse_other_number(len(lines), len(prefix))
        drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        request = requested(beam, n_best, align, guard, sample, **drawing)
        answers = list(self.stream(lines, self.decoding(beam, length_penalty), request=request, prefixes=prefix))
        self._warn(lines, answers)
        return answers

    def _warn(self, lines: Sequence[str], answers: Sequence[Answer]) -> None:
        tally = self.tally()
        for number, (line, answer) in enumerate(zip(lines, answers, strict=True), start=1):
            tally.add(number, line, answer)
            if answer.parts > 1:
                warnings.warn(f"line {number:,}: {answer.parts_warning}", stacklevel=3)
        for told in tally.warnings():
            warnings.warn(told, stacklevel=3)

    def tally(self) -> Tally:
        """Counts what is to be told of all lines together."""
        unseen = unseen_by(self.run, *self.others)
        symbols = self.recipe.tokenizer.symbols
        return Tally(symbols, [one for one in symbols if any(one in unseen[side] for side in unseen)])

    def stream(
        self,
        lines: Iterable[str],
        decoding: Decoding | None = None,
        batch_tokens: int = BATCH_TOKENS,
        at_once: int = LINES_AT_ONCE,
        request: Request = PLAIN,
        prefixes: str | Iterable[str] = "",
    ) -> Iterator[Answer]:
        """One answer for each of any number of lines, in their order, `at_once` lines being read ahead."""
        decoding = decoding or self.recipe.decode
        request.refuse_unless_possible(decoding)
        return self.scribe.answer(map(self._joined, lines), decoding, batch_tokens, at_once, request, prefixes)

    def stream_chunks(
        self,
        chunks: Iterable[Sequence[str]],
        decoding: Decoding | None = None,
        batch_tokens: int = BATCH_TOKENS,
        request: Request = PLAIN,
        prefixes: str | Iterable[str] = "",
    ) -> Iterator[Answer]:
        """The same for lines that come in chunks: one is answered before the next is asked for."""
        decoding = decoding or self.recipe.decode
        request.refuse_unless_possible(decoding)
        joined = (list(map(self._joined, chunk)) for chunk in chunks)
        return self.scribe.answer_chunks(joined, decoding, batch_tokens, request, prefixes)

    def outputs(self, lines: Iterable[str], decoding: Decoding) -> list[str]:
        """The text alone of each answer; too long a line is translated in parts without a word."""
        return [answer.text for answer in self.stream(lines, decoding)]

    def decoding(self, beam: int | None = None, length_penalty: float | None = None) -> Decoding:
        """The recipe's way to search, with what is given in its place."""
        chosen = self.recipe.decode if beam is None else replace(self.recipe.decode, beam=beam)
        return chosen if length_penalty is None else replace(chosen, length_penalty=length_penalty)

    def score(
        self,
        sources: Sequence[str],
        references: Sequence[str] | References,
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
    ) -> list[Score]:
        """The scores of the run's task on `sources`, the selecting one first, and the perplexity of the references.

        `references[i]` is what counts as right for `sources[i]`: one text, or several.
        """
        several = [[lines] if isinstance(lines, str) else list(lines) for lines in references]
        outputs = self.translate(sources, beam=beam, length_penalty=length_penalty)
        task = self.run.task
        assert isinstance(task, PairTask), "a translator's run has such a task"
        scores = task.score(outputs, several)
        pairs = [(source, text) for source, texts in zip(sources, several, strict=True) for text in texts]
        return [*scores, self.perplexity(*map(list, zip(*pairs, strict=True)))]

    def perplexity(self, sources: Sequence[str], targets: Sequence[str]) -> Score:
        """The perplexity of the target of each source, a token being a piece of the run's own tokenizer."""
        return perplexity(*self.scribe.nll([*map(self._joined, sources)], targets, self.recipe.batch.tokens))

    @cached_property
    def scribe(self) -> Scribe:
        """The model with its tokenizers."""
        longest = min(run.recipe.data.max_length for run in (self.run, *self.others))
        symbols = self.recipe.tokenizer.symbols
        return Scribe(model=self.model, tokenizers=self.run.tokenizers, longest=longest, symbols=symbols)

    def _joined(self, line: str) -> str:
        """A source as the model was shown it: where columns were joined for training, a tab counts as their blank."""
        return line.replace("\t", " ") if "+" in (self.recipe.data.columns or "") else line
