"""A character language model of Shakespeare: the shipped recipe `characters`, several seeds, the last tenth held out.

Takes a folder with `input.txt.gz`. What is measured is the whole of the last tenth, from the start of the line in which
it begins, in windows of the recipe's context that share no token: by `surd train` when it ends, and again by
`surd score` on that text as this script cuts it. Started again with the same folder, a training goes on.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import launch
import report
from texts import read_lines, write_lines

SHARE = 0.1


def main() -> None:
    arguments = parse()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    source = arguments.data / "input.txt.gz"
    held_out = out / "held.txt"
    write_lines(held_out, last_part(read_lines(source)))
    runs = [trained(source, out, seed, held_out, arguments) for seed in range(1, arguments.seeds + 1)]
    found = [run["nats per token"] for run in runs]
    spread = stdev(found) if len(found) > 1 else 0.0
    passage = launch.generate(out / "seed-1", "--prompt", "ROMEO:\n", "--temperature", "0.8", "--max-length", "400")
    result: dict[str, Any] = {"runs": runs, "mean": round(mean(found), 4), "deviation": round(spread, 4)}
    result |= {"context": launch.context(out / "seed-1"), "recipe": launch.recipe(out / "seed-1"), "passage": passage}
    report.write("language", "Tiny Shakespeare, characters", result, table(result), arguments.results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="folder with input.txt.gz")
    parser.add_argument("out", type=Path, help="folder for runs; give it again to go on")
    parser.add_argument("words", nargs="*", metavar="a.b=value", help="overrides of the recipe")
    parser.add_argument("--steps", type=int, help="updates; the recipe's own number when left out")
    parser.add_argument("--seeds", type=int, default=3, help="how many trainings, from seed 1 on")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    return parser.parse_intermixed_args()


def last_part(lines: list[str]) -> list[str]:
    """The lines from the one on in which the last tenth of the characters begins."""
    left = int((1 - SHARE) * sum(len(line) + 1 for line in lines))
    for number, line in enumerate(lines):
        left -= len(line) + 1
        if left < 0:
            return lines[number:]
    raise SystemExit("the text is empty")


def trained(source: Path, out: Path, seed: int, held_out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One training, and its scores on the text that it has not seen."""
    run = out / f"seed-{seed}"
    call = ["--text", source, "--recipe", "characters", "--seed", str(seed)]
    spoken = launch.train(run, call, arguments.words, arguments.steps)
    ending, scores = launch.ending(run), launch.score(run, held_out)
    told = launch.scores(run)
    assert abs(told["nats per token"] - scores["nats per token"]) < 1e-4, (told, scores)
    minutes = round(ending["seconds"] / 60, 1)
    return {"command": spoken, "seed": seed, "updates": ending["step"], "minutes": minutes, **scores}


def table(result: dict[str, Any]) -> str:
    """One row a seed, their mean beneath, and some lines that the first of them writes."""
    names = ("seed", "updates", "minutes", "nats per token", "bits per byte", "perplexity")
    rows = [tuple(run[name] for name in names) for run in result["runs"]]
    indented = "\n".join(f"    {line}".rstrip() for line in result["passage"].split("\n"))
    return (
        f"`{result['runs'][0]['command']}`, and the same with other seeds.\n\n{report.markdown_table(names, rows)}\n\n"
        f"Mean {result['mean']:.4f} nats a character, standard deviation {result['deviation']:.4f}: the whole last "
        f"tenth, in windows of {result['context']} characters of which none overlap.\n\n"
        f"The first seed goes on with `ROMEO:` at a temperature of 0.8:\n\n{indented}"
    )


if __name__ == "__main__":
    main()
