"""`surd generate`: prompts in, what a language model writes behind them out."""

import json as encoding
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from surd.errors import Faults, SurdError

if TYPE_CHECKING:
    from surd.run.writer import Passage

PROMPTS = 1024
"""Lines of standard input that are read at once."""
RULE = "---"
"""Stands between two texts of several lines."""


def generate(
    run: Path,
    /,
    *,
    prompt: str | None = None,
    greedy: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    max_length: int | None = None,
    seed: int | None = None,
    samples: int = 1,
    json: bool = False,
) -> None:
    """Goes on with prompts, by a language model: the prompt given, else one a line from standard input, else none.

    Parameters
    ----------
    run
        The folder of a run that was trained on running text.
    prompt
        What to go on with; without it, and with nothing on standard input, the model begins a line of its own.
    greedy
        Take the likeliest token each time, instead of drawing one.
    temperature
        Below 1 likely tokens get likelier, above 1 less so; the recipe's when not given.
    top_k
        Draw from so many of the likeliest tokens only; the recipe's when not given.
    top_p
        Draw from the likeliest tokens that together have this probability only; the recipe's when not given.
    max_length
        Tokens to add at most; the recipe's when not given.
    seed
        Start of the random choices, 0 when not given; one prompt with one seed comes out the same alone or beside
        others.
    samples
        How many texts to write for each prompt.
    json
        Print one JSON object a text, with prompt, text and whether it came to an end.
    """
    from surd.decode.sample import without_chance
    from surd.run import Run, use
    from surd.run.writer import unknown_warning

    writer = use.writer(Run.open(run))
    sampling = writer.sampling(greedy, temperature, top_k, top_p, max_length)
    if seed is not None and sampling.temperature == 0:
        raise Faults(without_chance({"seed": seed}))
    if note := writer.run.note():
        print(f"note: {note}", file=sys.stderr)
    passages = writer.passages(given_prompts(prompt), sampling, seed or 0, samples)
    for number, passage in enumerate(passages[::samples], start=1):
        if passage.unknown:
            print(f"warning: prompt {number:,}: {unknown_warning(passage.unknown)}", file=sys.stderr)
    for line in rendered(passages, json, by_line=writer.recipe.data.document == "line"):
        sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()


def given_prompts(prompt: str | None) -> list[str]:
    """The prompt that is named, or those on standard input; an empty one where there is none."""
    if prompt is not None:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise SurdError("--prompt: not UTF-8") from None
        return [prompt]
    if sys.stdin.isatty():
        return [""]
    from surd.commands.lines import standard_input

    return [line for chunk in standard_input(PROMPTS) for line in chunk] or [""]


def rendered(passages: "list[Passage]", json: bool, by_line: bool) -> Iterator[str]:
    """Lines of output: prompt and continuation together; whole texts stand apart from each other."""
    for number, passage in enumerate(passages):
        if json:
            yield encoding.dumps(asdict(passage), ensure_ascii=False)
            continue
        if number and not by_line:
            yield RULE
        yield passage.prompt + passage.text
