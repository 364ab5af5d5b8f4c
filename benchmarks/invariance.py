"""Whether an answer depends on its neighbours: sentences alone, in batches, sorted, shuffled, beside a long one.

A line's text must be the same each time; in fp32 its log-probability to 1e-5 too.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import report
import surd
from surd.run.text import Answer
from surd.run.translator import Translator

LONGER = 100
"""How many times as long as its own the long neighbour is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path, help="a trained run")
    parser.add_argument("source", type=Path, help="a text file, one sentence a line")
    parser.add_argument("--lines", type=int, default=500, help="how many lines of it")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    lines = [line for line in arguments.source.read_text(encoding="utf-8").split("\n") if line][: arguments.lines]
    rows, found = [], {}
    for precision in ("fp32", "bf16"):
        translator = surd.load(arguments.run, precision=precision)
        assert isinstance(translator, Translator), "sentences are translated"
        answer = partial(answers, translator, arguments.beam)
        alone = answer(lines, 1)
        for name, arm in arms(lines).items():
            result = compared(alone, arm(answer))
            found[f"{precision}, {name}"] = result
            rows.append((precision, name, f"{result['same']} of {len(lines)}", f"{result['apart']:.1e}"))
    result = {"lines": len(lines), "beam": arguments.beam, "against alone": found}
    text = f"{len(lines):,} lines, beam {arguments.beam}, each against its answer alone.\n\n"
    table = report.markdown_table(("precision", "neighbours", "same text", "log-probability, largest difference"), rows)
    report.write("invariance", "Whether an answer depends on its neighbours", result, text + table, arguments.results)


Answers = Callable[[Sequence[str], int], list[Answer]]


def arms(lines: Sequence[str]) -> dict[str, Callable[[Answers], list[Answer]]]:
    """Ways to answer the lines, each of which gives the answers in their order."""
    order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
    mixed = random.Random(1).sample(range(len(lines)), len(lines))
    long = " ".join([lines[0]] * LONGER)

    def ordered(numbers: Sequence[int], answer: Answers) -> list[Answer]:
        found = dict(zip(numbers, answer([lines[number] for number in numbers], 64), strict=True))
        return [found[number] for number in range(len(lines))]

    return {
        "in sevens": lambda answer: answer(lines, 7),
        "in 64s": lambda answer: answer(lines, 64),
        "sorted, in 64s": lambda answer: ordered(order, answer),
        "shuffled, in 64s": lambda answer: ordered(mixed, answer),
        "all at once, one a hundred times as long": lambda answer: answer([long, *lines], len(lines) + 1)[1:],
    }


def answers(translator: Translator, beam: int, lines: Sequence[str], at_once: int) -> list[Answer]:
    """Those of so many lines at a time."""
    return list(translator.stream(lines, translator.decoding(beam=beam), at_once=at_once))


def compared(alone: Sequence[Answer], other: Sequence[Answer]) -> dict[str, float]:
    """How many texts are the same, and how far the scores of those are apart."""
    same = [(one, two) for one, two in zip(alone, other, strict=True) if one.text == two.text]
    return {"same": len(same), "apart": max((abs(one.score - two.score) for one, two in same), default=0.0)}


if __name__ == "__main__":
    main()
