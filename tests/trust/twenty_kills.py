"""Twenty kills, by hand: ten aimed at calls that write, ten at any moment; each run must come out equal to the bit.

PYTHONPATH=src python tests/trust/twenty_kills.py [FOLDER]
"""

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from training.tiny import write_pairs
from trust.equal import assert_equal
from trust.killed import CALLS, child
from trust.test_kill import WORDS, killed_and_resumed


def main(folder: Path) -> None:
    draw = random.Random(20)
    pairs = write_pairs(folder / "pairs.tsv", 300)
    began = time.monotonic()
    process = child(folder / "run", "begin", str(pairs), *WORDS)
    told, said = process.communicate()
    assert process.returncode == 0, said
    lasts = time.monotonic() - began
    counts = dict(word.split(":") for word in told.splitlines()[-1].split())
    for number, call in enumerate(CALLS * 2):
        at = draw.randint(1, int(counts[call]))
        out = folder / f"aimed-{number}" / "run"
        out.parent.mkdir()
        killed_and_resumed(folder, out, f"{call}:{at}")
        assert_equal(folder / "run", out)
        print(f"aimed at {call} {at} of {counts[call]}: equal", flush=True)
    for number in range(10):
        out, first = folder / f"random-{number}" / "run", ("begin", str(pairs), *WORDS)
        out.parent.mkdir()
        process = child(out, *first)
        wait = draw.uniform(0.4, 1.0) * lasts
        time.sleep(wait)
        process.kill()
        process.communicate()
        process = child(out, *(("resume",) if (out / "run.json").exists() else first))
        _, said = process.communicate()
        assert process.returncode == 0, said
        assert_equal(folder / "run", out)
        print(f"at random after {wait:.1f} s: equal", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
