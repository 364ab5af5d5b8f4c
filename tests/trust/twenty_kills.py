"""Twenty kills, by hand: ten aimed at calls that write, ten at any moment; each run must come out equal to the bit.

PYTHONPATH=src python tests/trust/twenty_kills.py [pairs|text]      all twenty, or the ten of one kind of training
"""

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from training.tiny import TORN, write_pairs, write_text
from trust.equal import assert_equal
from trust.killed import CALLS, child
from trust.test_kill import WORDS, kill_new, take_up


def ten(folder: Path, data: Path, words: Sequence[str], draw: random.Random) -> None:
    """Five kills aimed at each of the calls, five at random, of the same training."""
    began = time.monotonic()
    process = child(folder / "run", "begin", str(data), *words)
    told, said = process.communicate()
    assert process.returncode == 0, said
    lasts = time.monotonic() - began
    counts = dict(word.split(":") for word in told.splitlines()[-1].split())
    for call in CALLS:
        at = draw.randint(1, int(counts[call]))
        out = folder / call / "run"
        out.parent.mkdir()
        kill_new(data, words, out, f"{call}:{at}")
        take_up(data, words, out)
        assert_equal(folder / "run", out)
        print(f"{data.name}: aimed at {call} {at} of {counts[call]}: equal", flush=True)
    for number in range(5):
        out = folder / f"random-{number}" / "run"
        out.parent.mkdir()
        process = child(out, "begin", str(data), *words)
        wait = draw.uniform(0.4, 1.0) * lasts
        time.sleep(wait)
        process.kill()
        process.communicate()
        take_up(data, words, out)
        assert_equal(folder / "run", out)
        print(f"{data.name}: at random after {wait:.1f} s: equal", flush=True)


def main(kinds: Sequence[str]) -> None:
    """The trainings of those kinds, in folders that go again."""
    draw = random.Random(20)
    for kind in kinds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind == "pairs":
                ten(folder, write_pairs(folder / "pairs.tsv", 300), WORDS, draw)
            else:
                ten(folder, write_text(folder / "text.txt"), TORN, draw)


if __name__ == "__main__":
    main(sys.argv[1:] or ["pairs", "text"])
