"""`surd translate`: lines in, lines out."""

import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from cyclopts import Parameter

from surd.commands.forms import Text, chosen_form
from surd.errors import SurdError, unknown

if TYPE_CHECKING:
    from surd.commands.lines import Rows
    from surd.run.outputs import Output
    from surd.run.text import Answer

COUNTED = 1024
"""Lines between two counts."""
TRANSLATION = "translation"
"""The key of a translation in JSON lines."""


def translate(
    run: Path,
    /,
    *source: Annotated[str, Parameter(name="SOURCE", allow_leading_hyphen=True)],
    output: Path | None = None,
    column: str | None = None,
    json: str | None = None,
    with_: Annotated[tuple[Path, ...], Parameter(name="--with", negative=())] = (),
    beam: int | None = None,
    greedy: bool = False,
    length_penalty: float | None = None,
    scores: bool = False,
    n_best: int = 1,
    prefix: str | None = None,
    prefixes: Path | None = None,
    align: bool = False,
    sample: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    keep_loops: bool = False,
    batch_tokens: int = 16_384,
) -> None:
    """Translates with a trained run: one line in, one line out, in order; an empty line stays empty.

    Lines of a pipe or terminal are answered as they come, those of a file many at a time. A line that is longer than
    what the model was trained on is cut at the ends of sentences, then at blanks, and rejoined.

    Parameters
    ----------
    run
        The folder of a trained run.
    source
        A file with one text a line, plain or compressed (gz, xz, zst); "-", or nothing, is standard input.
    output
        Write to this file, once all is done, instead of standard output.
    column
        The input is a TSV, and this column (counted from 1; "1+2" joins two) is translated; the translation is added
        as last column.
    json
        The input is JSON lines, and the text under this key is translated; the key "translation" is added.
    with_
        A further run, whose model writes together with that of RUN, by the mean of their probabilities; may be given
        several times. They must have one vocabulary.
    beam
        How many hypotheses are followed for each line; the recipe's when not given.
    greedy
        Follow one hypothesis only: the fastest way, the same as a beam of 1.
    length_penalty
        Score = sum of log-probabilities / length ** penalty; the recipe's when not given.
    scores
        Put the score and a tab before each line.
    n_best
        Write the so many best outputs of each line, at most the beam, one below the other; before each stand the number
        of its line and a tab. With --sample, so many are drawn.
    prefix
        What every output begins with.
    prefixes
        A file with what the output of each line begins with, one a line; an empty one leaves it free.
    align
        Put the alignment and a tab before each output: i-j for each word j of it, which was written from word i of the
        source, both counted from 0 (characters or symbols, where a side is cut into those).
    sample
        Draw each output, instead of searching for the best one.
    temperature
        With --sample: below 1 likely tokens get likelier, above 1 less so; 1 when not given.
    top_k
        With --sample: draw from so many of the likeliest tokens only.
    top_p
        With --sample: draw from the likeliest tokens that together have this probability only.
    seed
        With --sample: start of the random choices, 0 when not given. The draws of a line follow from it and from the
        line's number, whatever else is translated.
    keep_loops
        Leave an output that goes in circles as it is, instead of searching once more without them.
    batch_tokens
        Lines × longest line × beam that are worked on together: more is faster until memory runs out.
    """
    beam = chosen_beam(beam, greedy)
    told = {"score": scores, "alignment": align, TRANSLATION: True}
    form = chosen_form(column, json, [name for name, wanted in told.items() if wanted])
    from surd.commands.lines import Row, Rows, rows
    from surd.run import Run, use
    from surd.run.prefixes import refuse_other_number
    from surd.run.request import requested
    from surd.run.text import LINES_AT_ONCE

    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    request = requested(beam, n_best, align, not keep_loops, sample, **drawing)
    if batch_tokens < 1:
        raise SurdError(f"--batch-tokens: expected at least 1, found {batch_tokens}")
    if length_penalty is not None and not scores and n_best == 1 and (sample or beam == 1):
        raise SurdError("--length-penalty ranks outputs, and there is one a line: give a --beam, or show its --scores")
    beginnings = chosen_prefixes(prefix, prefixes)
    path, opened = chosen_source(source), [Run.open(one) for one in (run, *with_)]
    chunks = rows(path, form, LINES_AT_ONCE)
    if isinstance(beginnings, Rows) and chunks.number is not None and beginnings.number is not None:
        refuse_other_number(chunks.number, beginnings.number)
    translator = use.translator(*opened)
    decoding = translator.decoding(beam, length_penalty)
    for note in filter(None, (one.note() for one in opened)):
        print(f"note: {note}", file=sys.stderr)
    waiting: deque[Row] = deque()

    def texts() -> Iterator[list[str]]:
        for chunk in chunks:
            waiting.extend(chunk)
            yield [row.text for row in chunk]

    given = beginnings if isinstance(beginnings, str) else (row.text for chunk in beginnings for row in chunk)
    answers = translator.stream_chunks(texts(), decoding, batch_tokens, request, given)
    tally = translator.tally()
    try:
        with destination(output) as file:
            for number, answer in enumerate(counted(answers, output), start=1):
                row = waiting.popleft()
                numbered = {"line": f"{number}"} if n_best > 1 and column is None and json is None else {}
                for one in answer.outputs:
                    file.write(f"{form.write(row.line, numbered | rendered(one, scores, align))}\n".encode())
                if output is None:
                    file.flush()  # somebody may be waiting for this line
                tally.add(number, row.text, answer)
                if answer.parts > 1:
                    warn(f"line {number:,}: {answer.parts_warning}")
    finally:
        for told in tally.warnings():
            warn(told)


def counted(answers: "Iterable[Answer]", output: Path | None) -> "Iterator[Answer]":
    """The answers, with a live count on standard error where somebody watches and the lines go elsewhere."""
    watched = sys.stderr.isatty() and (output is not None or not sys.stdout.isatty())
    began = time.monotonic()
    for number, answer in enumerate(answers, start=1):
        yield answer
        if watched and number % COUNTED == 0:
            rate = number / (time.monotonic() - began)
            print(f"\r{number:,} lines, {rate:,.0f} a second", end="", file=sys.stderr, flush=True)
    if watched:
        print(file=sys.stderr)


def chosen_beam(beam: int | None, greedy: bool) -> int | None:
    """The beam that two options ask for, None for the recipe's."""
    if greedy and beam not in (None, 1):
        raise SurdError(f"--greedy is a beam of 1: it does not go with --beam {beam}")
    return 1 if greedy else beam


def chosen_source(words: Sequence[str]) -> str:
    """The one file that is named, or standard input; an option that does not exist lands here too, and is refused."""
    for word in words:
        if word.startswith("-") and word != "-":
            keywords = [one.name for one in signature(translate).parameters.values() if one.kind is one.KEYWORD_ONLY]
            raise SurdError(unknown("option", word, [f"--{name.strip('_').replace('_', '-')}" for name in keywords]))
    if len(words) > 1:
        raise SurdError(f"expected one file to translate, found {len(words)}: {', '.join(words)}")
    return words[0] if words else "-"


def chosen_prefixes(prefix: str | None, prefixes: Path | None) -> "str | Rows":
    """What outputs begin with: one text for all, or the lines of a file."""
    if prefix is not None and prefixes is not None:
        raise SurdError("--prefix is for all lines and --prefixes for one each: they do not go together")
    if prefixes is None:
        try:
            return (prefix or "").encode().decode()
        except UnicodeEncodeError:
            raise SurdError("--prefix: not UTF-8") from None
    if str(prefixes) == "-":
        raise SurdError("--prefixes: expected a file, since standard input is for the lines to translate")
    from surd.commands.lines import rows
    from surd.run.text import LINES_AT_ONCE

    return rows(str(prefixes), Text(), LINES_AT_ONCE)


def rendered(output: "Output", scores: bool, align: bool) -> dict[str, str | float]:
    """What is written of an output, by name and in this order."""
    before: dict[str, str | float] = {"score": output.score} if scores else {}
    return before | ({"alignment": output.links} if align else {}) | {TRANSLATION: output.text}


def warn(message: str) -> None:
    """Says something on standard error."""
    print(f"warning: {message}", file=sys.stderr)


@contextmanager
def destination(path: Path | None) -> Generator[IO[bytes], None, None]:
    """Standard output, or a file that appears whole when the block succeeds."""
    from surd.files import replacing

    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with replacing(path) as temporary, temporary.open("wb") as file:
            yield file
