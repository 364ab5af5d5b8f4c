"""Starts surd as a user does, by its command, goes on where an earlier start stopped, and reads what the run left."""

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from surd.files import read_json


def finished(run: Path, steps: int | None) -> bool:
    """Whether the training of a run has ended, and at no fewer updates than are now asked for."""
    scores = run / "scores.json"
    return scores.is_file() and (steps is None or steps <= asked_steps(run))


def asked_steps(run: Path) -> int:
    """The updates after which a run's training ends at the latest: fewer are made when patience ends it."""
    return recipe(run)["training"]["steps"]


def train(
    run: Path,
    arguments: Sequence[str | Path],
    words: Sequence[str] = (),
    steps: int | None = None,
    watch: Callable[[], bool] | None = None,
) -> str:
    """Trains to the end, from the last checkpoint where there is one; gives the commands that this run has seen.

    `words` are settings `a.b=value`; `steps` may grow from one call to the next.
    """
    settings = [*words, *([] if steps is None else [f"training.steps={steps}"])]
    beginning = ["train", *arguments, "--out", run, *settings]
    history = run.with_name(f"{run.name}.commands")
    if finished(run, steps):
        print(f"{run}: trained already")
    else:
        begun = (run / "run.json").is_file()
        call = ["train", "--resume", run, *settings] if begun else beginning
        before = history.read_text(encoding="utf-8") if begun and history.is_file() else ""
        history.write_text(f"{before}{spoken(*call)}\n", encoding="utf-8")
        run_surd(*call, watch=watch)
    if not history.is_file():  # begun by hand: what this script would have typed
        return spoken(*beginning)
    return "; ".join(dict.fromkeys(history.read_text(encoding="utf-8").splitlines()))


def spoken(*arguments: str | Path) -> str:
    """A command line for reports: files by their names, since the folders are those of one machine."""
    return " ".join(["surd", *(word.name if isinstance(word, Path) else word for word in arguments)])


def run_surd(*arguments: str | Path, watch: Callable[[], bool] | None = None) -> None:
    """One call of surd. `watch` is called now and then until it says that it has seen enough; what it raises ends surd.

    An interrupt from the terminal reaches surd too, which then writes a checkpoint: this waits for it.
    """
    process = subprocess.Popen([sys.executable, "-m", "surd", *map(str, arguments)])
    try:
        while watch is not None and process.poll() is None and not watch():
            time.sleep(1)
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise SystemExit(130) from None
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status:
        raise SystemExit(status)


def translate(run: Path, source: Path, output: Path, *options: str) -> None:
    """Translates a file line by line into another."""
    run_surd("translate", run, source, "--output", output, *options)


def score(run: Path, *files: Path) -> dict[str, float]:
    """The scores of a run on a text, by name."""
    found = json.loads(output_of("score", run, *files, "--json"))
    return {one["name"]: round(one["value"], 4) for one in found["scores"]}


def generate(run: Path, *options: str) -> str:
    """What a language model writes."""
    return output_of("generate", run, *options).removesuffix("\n")


def output_of(*arguments: str | Path) -> str:
    """What one call of surd prints."""
    command = [sys.executable, "-m", "surd", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True).stdout


def scores(run: Path) -> dict[str, float]:
    """The scores that a training ended with, by name."""
    return {one["name"]: one["value"] for one in read_json(run / "scores.json")["scores"]}


def context(run: Path) -> int:
    """Tokens of running text that a run's model reads at once."""
    return tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))["data"]["context"]


def journal(run: Path, event: str) -> list[dict[str, Any]]:
    """The records of one kind from a run's journal, in order."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


def recipe(run: Path) -> dict[str, Any]:
    """The recipe that a run was trained with, without the places of its data."""
    values = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
    return {name: value for name, value in values.items() if name != "data"}


def ending(run: Path) -> dict[str, Any]:
    """How a training ended, in its own words: updates, why, which weights were chosen among which, and the time."""
    record = read_json(run / "scores.json")
    return {name: record[name] for name in ("step", "why", "chosen", "candidates", "seconds")}
