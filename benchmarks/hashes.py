"""What the hash of weights and optimiser state costs that a training writes after every update: a share of the update.

Both are timed in turn, as processor time of one thread. Models and batches are those of recipes that come with surd;
their batches are filled with random tokens, in sentences or words of a usual length.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import report
from surd.data.batch import Batch
from surd.models.architecture import Architecture
from surd.models.seq2seq import Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.part import structure
from surd.recipe import Training, suggested
from surd.seed import seed_all
from surd.training.checkpoint import all_tensors
from surd.training.fingerprint import Fingerprints
from surd.training.step import train_step

CASES = {"pronunciation": (40, 8), "nano": (1000, 20), "tiny": (10_000, 20), "small": (12_000, 20)}
"""Recipe, with the size of its vocabularies and the length of a line in tokens."""
LIMIT = 0.02
"""The most that hashes may cost, as a share of an update."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recipes", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seed_all(0)
    result = {"rounds": arguments.rounds, "limit": LIMIT, "recipes": {}}
    for name in arguments.recipes:
        result["recipes"][name] = cost(name, arguments.rounds)
        print(name, result["recipes"][name], flush=True)
    report.write("hashes", "What a hash after every update costs", result, table(result), arguments.results)
    if dear := [name for name, one in result["recipes"].items() if one["share"] > LIMIT]:
        raise SystemExit(f"more than {LIMIT:.0%}: {', '.join(dear)}")


def cost(name: str, rounds: int) -> dict[str, float]:
    """Milliseconds of an update and of a hash: medians of both, and of their ratio within a round."""
    values, (vocabulary, length) = suggested(name).values, CASES[name]
    model = Seq2Seq(structure(Architecture, values["model"], "model"), vocabulary, vocabulary)
    training = Training(steps=1000, evaluate_every=100)
    optimizer = training.optimizer.build(model)
    batch = filled(values["batch"]["tokens"], vocabulary, length)
    updates, hashes = [], []
    with TemporaryDirectory() as folder:
        fingerprints = Fingerprints(Path(folder))
        for step in range(rounds + 1):
            updates.append(spent(lambda: train_step(model, [batch], optimizer, 1.0, 0.1)))
            hashes.append(spent(lambda: fingerprints.update(step, all_tensors(model, optimizer))))  # noqa: B023
    updates, hashes = updates[1:], hashes[1:]  # the first ones make the optimiser's tensors
    return {
        "parameters": model.parameter_counts()[0],
        "update": 1000 * statistics.median(updates),
        "hash": 1000 * statistics.median(hashes),
        "share": statistics.median(hash / update for hash, update in zip(hashes, updates, strict=True)),
    }


def filled(tokens: int, vocabulary: int, length: int) -> Batch:
    """A batch of so many tokens a side."""
    draw = random.Random(0)
    rows = [[draw.randrange(8, vocabulary) for _ in range(length - 1)] for _ in range(tokens // length)]
    return Batch(
        source=Ragged.from_lists([[*row, EOS] for row in rows]),
        target=Ragged.from_lists([[BOS, *row] for row in rows]),
        labels=Ragged.from_lists([[*row, EOS] for row in rows]).tokens,
        numbers=tuple(range(len(rows))),
    )


def spent(act: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    began = time.process_time()
    act()
    return time.process_time() - began


def table(result: dict) -> str:
    """The result as a table."""
    lines = ["| recipe | parameters | an update | a hash | share |", "|---|---|---|---|---|"]
    for name, one in result["recipes"].items():
        lines.append(
            f"| {name} | {one['parameters']:,} | {one['update']:,.0f} ms | {one['hash']:.1f} ms | {one['share']:.2%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
