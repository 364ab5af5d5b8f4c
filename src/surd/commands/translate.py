"""`surd translate`: lines in, lines out."""

import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from cyclopts import Parameter

from surd.errors import SurdError, unknown

if TYPE_CHECKING:
    from surd.run.text import Answer

COUNTED = 1024
"""Lines between two counts."""
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"


def translate(
    run: Path,
    /,
    *source: Annotated[str, Parameter(name="SOURCE", allow_leading_hyphen=True)],
    output: Path | None = None,
    beam: int | None = None,
    greedy: bool = False,
    length_penalty: float | None = None,
    scores: bool = False,
    batch_tokens: int = 16_384,
) -> None:
    """Translates with a trained run: one line in, one line out, in order; an empty line stays empty.

    Parameters
    ----------
    run
        The folder of a trained run.
    source
        A file with one text a line, plain or compressed (gz, xz, zst); "-", or nothing, is standard input.
    output
        Write to this file, once all is done, instead of standard output.
    beam
        How many hypotheses are followed for each line; the recipe's when not given.
    greedy
        Follow one hypothesis only: the fastest way, the same as a beam of 1.
    length_penalty
        Score = sum of log-probabilities / length ** penalty; the recipe's when not given.
    scores
        Put the score and a tab before each line.
    batch_tokens
        Lines × longest line × beam that are worked on together: more is faster until memory runs out.
    """
    beam = chosen_beam(beam, greedy)
    path = chosen_source(source)
    lines = standard_input() if path == "-" else file_lines(path)
    from surd.run import Run, use

    translator = use.translator(Run.open(run))
    decoding = translator.decoding(beam, length_penalty)
    if note := translator.run.note():
        print(f"note: {note}", file=sys.stderr)
    at_once = {"at_once": 1} if path == "-" and sys.stdin.isatty() else {}
    answers = translator.stream(lines, decoding, batch_tokens, **at_once)
    with destination(output) as file:
        for number, answer in enumerate(counted(answers, output), start=1):
            file.write(rendered(answer, scores).encode())
            if at_once:
                file.flush()  # somebody waits for this line at a terminal
            if answer.cut:
                warn(number, answer)


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
            raise SurdError(unknown("option", word, [f"--{name.replace('_', '-')}" for name in keywords]))
    if len(words) > 1:
        raise SurdError(f"expected one file to translate, found {len(words)}: {', '.join(words)}")
    return words[0] if words else "-"


def rendered(answer: "Answer", scores: bool) -> str:
    """One line of output."""
    return f"{answer.score:.4f}\t{answer.text}\n" if scores else f"{answer.text}\n"


def warn(number: int, answer: "Answer") -> None:
    """Says on standard error that a line was too long for the model."""
    print(f"warning: line {number:,}: {answer.cut_warning}", file=sys.stderr)


def standard_input() -> Iterator[str]:
    r"""The lines of standard input as they come; only "\n" and "\r\n" end a line."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            found = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
            raise SurdError(f"standard input, line {number:,}: not UTF-8: {found}") from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


def file_lines(path: str) -> Iterable[str]:
    """The lines of a file; one that does not exist is refused at once, one that is not text when it is read."""
    from surd.data.lines import Complaints, Input, missing

    if fault := missing(path):
        raise SurdError(fault)
    complaints = Complaints()

    def lines() -> Iterator[str]:
        for line in Input(path).lines(complaints):
            complaints.raise_any()
            yield line
        complaints.raise_any()

    return lines()


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
