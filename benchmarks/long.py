"""How much memory and time a long corpus takes: generated pairs, prepared and trained on for a few updates.

    python benchmarks/long.py OUT [--pairs 100000 1000000] [--steps 4] [--words ...]

For each number of pairs a corpus is generated into OUT, and `surd train` is started on it as a user starts it, in a
process of its own whose peak of memory the system tells (what it looks at of mapped files included). The corpus is
removed again; what was measured is printed and kept in OUT/long.json.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

VOCABULARY, LONGEST = 30_000, 24
"""Words of the generated language, and most words of a sentence."""
LETTERS = np.array(list("aaabcdeeeefghiiijklmnnoooprrsstttuuvwyz"))
BLOCK = 100_000
TINY = [
    *("model.d_model=64", "model.heads=2", "model.d_ff=128", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("batch.tokens=2048", "decode.beam=1", "training.average=1", "task=translation"),
]
"""A model so small that what is measured is the data; everything else follows from them."""


def generate(path: Path, pairs: int, seed: int = 1) -> None:
    """Writes a TSV of sentences of random words, the frequent ones first (Zipf), and the same words spelt backwards."""
    random = np.random.default_rng(seed)
    spellings = ["".join(random.choice(LETTERS, random.integers(2, 11))) for _ in range(VOCABULARY)]
    backwards = [word[::-1].upper() for word in spellings]
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    frequency /= frequency.sum()
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, pairs, BLOCK):
            lengths = random.integers(4, LONGEST, min(BLOCK, pairs - start))
            words = random.choice(VOCABULARY, int(lengths.sum()), p=frequency).tolist()
            place = 0
            for length in lengths.tolist():
                row = words[place : place + length]
                place += length
                left, right = (" ".join([table[word] for word in row]) for table in (spellings, backwards))
                file.write(f"{left}\t{right}\n")


def measured(out: Path, pairs: int, steps: int, words: list[str]) -> dict:
    """One training: peak of memory, and the seconds until its first update."""
    corpus, run = out / f"{pairs}.tsv", out / f"run-{pairs}"
    began = time.monotonic()
    generate(corpus, pairs)
    generated = time.monotonic() - began
    shutil.rmtree(run, ignore_errors=True)
    settings = [*TINY, f"training.steps={steps}", f"training.evaluate_every={steps}", *words]
    command = [sys.executable, "-m", "surd", "train", str(corpus), *settings, "--out", str(run)]
    began = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told, marks = [], {}
    for line in process.stderr:
        told.append(line)
        for mark in ("pairs read from", "the tokenizers", "the ids of all data", "a short calibration", "the model"):
            if mark in line:
                marks.setdefault(mark, time.monotonic() - began)
    _, status, usage = os.wait4(process.pid, 0)
    whole = time.monotonic() - began
    if status:
        sys.exit(f"surd train ended with status {status}:\n{''.join(told)}")
    corpus_bytes, prepared = corpus.stat().st_size, sum(file.stat().st_size for file in (run / "data").iterdir())
    corpus.unlink()
    shutil.rmtree(run)
    ready = marks["a short calibration"]
    return {
        "pairs": pairs,
        "peak_mb": round(usage.ru_maxrss / 1024, 1),
        "seconds_to_prepare": round(ready, 1),
        "seconds_per_million": round(ready * 1e6 / pairs, 1),
        "seconds_at": {mark: round(seconds, 1) for mark, seconds in marks.items()},
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "seconds_in_all": round(whole, 1),
        "seconds_to_generate": round(generated, 1),
        "corpus_mb": round(corpus_bytes / 1e6, 1),
        "prepared_mb": round(prepared / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=4, help="updates after the preparation")
    parser.add_argument("--words", nargs="*", default=[], help="more settings of the recipe, such as tokenizer.joint=x")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    results = []
    for pairs in given.pairs:
        results.append(measured(given.out, pairs, given.steps, given.words))
        more = results[-1]["peak_mb"] - results[0]["peak_mb"]
        print(json.dumps(results[-1]), f"{more:+.0f} MB beside the first" if len(results) > 1 else "", flush=True)
    (given.out / "long.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
