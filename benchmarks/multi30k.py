"""Multi30k, English to German: trained by `surd train`, chosen on validation, test2016 scored once.

Two arms. The first is the published preparation (lower-cased, Moses-tokenised text, the shipped recipe `multi30k`), to
be held against published figures. `--raw` is the path of a user who knows nothing of that: the text as it lies, a
recipe derived from it, cased scores. Started again with the same folder, a training goes on from its last checkpoint.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU

import launch
import moses
import report
from surd.data.stream import Prepared
from texts import read_lines


def main() -> None:
    arguments = parse()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    files = raw_files(arguments.data) if arguments.raw else tokenised_files(arguments.data, out / "text")
    name = "raw" if arguments.raw else "tokenised"
    run = out / f"run-{name}"

    call = [files["train.en"], files["train.de"], "--dev", files["dev.en"], files["dev.de"]]
    call += ["--seed", str(arguments.seed)] + ([] if arguments.raw else ["--recipe", "multi30k"])
    watch = None if arguments.raw else partial(check_pieces, run)
    spoken = launch.train(run, call, arguments.words, arguments.steps, watch)

    # The weights in the run were chosen by surd on the validation set; nothing below chooses anything.
    outputs = {part: out / f"{part}-{name}.hyp" for part in ("dev", "test")}
    for part, output in outputs.items():
        launch.translate(run, files[f"{part}.en"], output)
    score = score_raw if arguments.raw else score_tokenised
    scores = {part: score(outputs[part], files, part, arguments.data) for part in outputs}
    result = {"command": spoken, "scores": scores, "ending": launch.ending(run), "recipe": launch.recipe(run)}
    title = f"Multi30k en-de, {'raw truecased text' if arguments.raw else 'lower-cased, Moses-tokenised text'}"
    report.write(f"multi30k-{name}-{launch.asked_steps(run)}", title, result, table(result), arguments.results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="folder with train, val and test_2016_flickr, .en.gz and .de.gz")
    parser.add_argument("out", type=Path, help="folder for prepared text, run and output; give it again to go on")
    parser.add_argument("words", nargs="*", metavar="a.b=value", help="overrides of the recipe")
    parser.add_argument("--steps", type=int, help="updates; the recipe's own number when left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--raw", action="store_true", help="the text as it lies, a derived recipe, cased scores")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    return parser.parse_intermixed_args()


def raw_files(data: Path) -> dict[str, Path]:
    """The files as they lie."""
    return {
        f"{ours}.{side}": data / f"{theirs}.{side}.gz" for ours, theirs in moses.SPLITS.items() for side in moses.WORDS
    }


def tokenised_files(data: Path, folder: Path) -> dict[str, Path]:
    """The files of the published preparation, made when missing and checked by their number of words."""
    for language, words in moses.prepare(data, folder).items():
        print(f"words {language}: {words:,}, as published")
    return {f"{part}.{language}": folder / f"{part}.{language}" for part in moses.SPLITS for language in moses.WORDS}


def check_pieces(run: Path) -> bool:
    """Holds the pieces of the training text against the published preparation, as soon as surd has counted them."""
    if not (run / "data" / "prepared.json").is_file():
        return False
    prepared = Prepared(run / "data")
    ends = prepared.pairs  # the index counts the end of each sentence as a token
    moses.check_pieces({"en": prepared.source_tokens - ends, "de": prepared.target_tokens - ends})
    return True


def score_tokenised(output: Path, files: dict[str, Path], part: str, data: Path) -> dict[str, Any]:
    """BLEU on the tokenised text as published, and on the text put together again against the text as it lies."""
    hypotheses, references = read_lines(output), read_lines(files[f"{part}.de"])
    raw = read_lines(data / f"{moses.SPLITS[part]}.de.gz")
    return {
        "tokenised": bleu(hypotheses, references, BLEU(tokenize="none", lowercase=False, force=True)),
        "detokenised": bleu(moses.detokenise(hypotheses, "de"), raw, BLEU(tokenize="13a", lowercase=True)),
    }


def score_raw(output: Path, files: dict[str, Path], part: str, data: Path) -> dict[str, Any]:
    """Cased BLEU on the text as it lies, by sacreBLEU's default, and without case beside it."""
    hypotheses, references = read_lines(output), read_lines(files[f"{part}.de"])
    return {
        "cased": bleu(hypotheses, references, BLEU()),
        "uncased": bleu(hypotheses, references, BLEU(lowercase=True)),
    }


def bleu(hypotheses: list[str], references: list[str], metric: BLEU) -> dict[str, Any]:
    """One score with everything that it depends on."""
    score = metric.corpus_score(hypotheses, [references])
    return {
        "bleu": round(score.score, 2),
        "precisions": [round(precision, 1) for precision in score.precisions],
        "brevity_penalty": round(score.bp, 3),
        "signature": str(metric.get_signature()),
    }


def table(result: dict[str, Any]) -> str:
    """The scores, above them how they came about."""
    rows = [
        (part, kind, score["bleu"], spelled(score["precisions"]), score["brevity_penalty"], score["signature"])
        for part, kinds in result["scores"].items()
        for kind, score in kinds.items()
    ]
    ending = result["ending"]
    told = f"{ending['step']:,} updates in {ending['seconds'] / 60:.0f} minutes, {ending['chosen']}"
    heads = ("part", "text", "BLEU", "precisions", "brevity penalty", "signature")
    return f"`{result['command']}`: {told}.\n\n{report.markdown_table(heads, rows)}"


def spelled(precisions: list[float]) -> str:
    """The precisions of BLEU as they are usually written."""
    return "/".join(map(str, precisions))


if __name__ == "__main__":
    main()
