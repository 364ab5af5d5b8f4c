"""Pronunciation of English words: the full preset on the CMU dictionary, scored on words held out whole.

Takes a folder with `hash_train|dev|test.tsv.gz` (word TAB phones, one line a pronunciation). Stress digits are removed,
decoding is greedy, and a word is right when the output is any of its listed pronunciations. Started again with the same
folder, a training goes on from its last checkpoint.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

import launch
import report
from texts import read_lines, write_lines

PARTS = ("train", "dev", "test")


def main() -> None:
    arguments = parse()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    files = {part: prepare(arguments.data / f"hash_{part}.tsv.gz", out / f"{part}.tsv") for part in PARTS}
    held_out = {part: pronunciations(files[part]) for part in PARTS}
    for part in ("dev", "test"):
        assert not held_out["train"].keys() & held_out[part].keys(), f"{part}: words that are also trained on"

    run = out / "run"
    call = [files["train"], "--dev", files["dev"], "--recipe", "pronunciation", "--seed", str(arguments.seed)]
    spoken = launch.train(run, call, arguments.words, arguments.steps)

    scores = {part: score(run, held_out[part], out / part) for part in ("dev", "test")}
    curve = epochs(run)
    result: dict[str, Any] = {"command": spoken, "scores": scores, "ending": launch.ending(run)}
    result |= {"recipe": launch.recipe(run), "curve": curve}
    title = "Pronunciation, CMU dictionary (own split by hash)"
    report.write("pronunciation", title, result, table(result), arguments.results)
    draw(curve, arguments.results / "pronunciation.png")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="folder with hash_train.tsv.gz, hash_dev.tsv.gz, hash_test.tsv.gz")
    parser.add_argument("out", type=Path, help="folder for prepared text, run and output; give it again to go on")
    parser.add_argument("words", nargs="*", metavar="a.b=value", help="overrides of the recipe")
    parser.add_argument("--steps", type=int, help="updates; the recipe's own number when left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    return parser.parse_intermixed_args()


def prepare(source: Path, target: Path) -> Path:
    """The same lines without stress digits; pronunciations that differed in nothing else become one line."""
    if not target.is_file():
        lines = [line.translate({ord(digit): None for digit in "012"}) for line in read_lines(source)]
        write_lines(target, dict.fromkeys(lines))
    return target


def pronunciations(path: Path) -> dict[str, set[str]]:
    """Each word's listed pronunciations."""
    listed: dict[str, set[str]] = {}
    for line in read_lines(path):
        word, phones = line.split("\t")
        listed.setdefault(word, set()).add(phones)
    return listed


def score(run: Path, listed: dict[str, set[str]], stem: Path) -> dict[str, Any]:
    """Greedy output for each word once; the share of words whose output is none of the listed ones."""
    source, output = stem.with_suffix(".words"), stem.with_suffix(".hyp")
    write_lines(source, listed)
    launch.translate(run, source, output, "--greedy")
    said = read_lines(output)
    wrong = sum(phones not in variants for phones, variants in zip(said, listed.values(), strict=True))
    return {"words": len(listed), "wrong": wrong, "word_error_rate": round(100 * wrong / len(listed), 2)}


def epochs(run: Path) -> list[dict[str, float]]:
    """What the journal holds of every look at the held-out words of `dev`: the epoch, the losses, the error rates."""
    updates = {record["step"]: record for record in launch.journal(run, "update")}
    curve = []
    for look in launch.journal(run, "evaluation"):
        # The journal has a line every few updates: the nearest one tells where the training stood.
        last = updates[min(updates, key=lambda step: abs(step - look["step"]))]
        rates = {one["name"]: round(one["value"], 2) for one in look["scores"]}
        point = {"step": look["step"], "epoch": round(last["epoch"], 2), "minutes": round(last["seconds"] / 60, 1)}
        curve.append({**point, "nll": round(last["nll"], 4), "held_out_nll": round(look["nll"], 4), **rates})
    return curve


def table(result: dict[str, Any]) -> str:
    """The scores, and beneath them the curve."""
    parts = [(part, one["words"], one["wrong"], one["word_error_rate"]) for part, one in result["scores"].items()]
    ending, curve = result["ending"], result["curve"]
    told = f"{ending['step']:,} updates in {ending['seconds'] / 60:.0f} minutes, {ending['chosen']}"
    scores = report.markdown_table(("part", "words", "wrong", "WER (%)"), parts)
    points = report.markdown_table(tuple(curve[0]), [tuple(point.values()) for point in curve])
    return f"`{result['command']}`: {told}.\n\n{scores}\n\nWhile training, on `dev`, greedy:\n\n{points}"


def draw(curve: list[dict[str, float]], path: Path) -> None:
    """Word error rate over epochs."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([point["epoch"] for point in curve], [point["WER"] for point in curve], marker="o", markersize=3)
    axes.set(xlabel="epoch", ylabel="word error rate on dev, greedy (%)", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
