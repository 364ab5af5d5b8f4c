"""What `surd.watch` costs at its default: a training with it and without, in turn, each in its own process.

A round of each arm is one whole interval of the watch, so that it holds exactly one observed update. The models are
those of `speed.py`: our own step, and Hugging Face's MarianMTModel with hand-written attention in a plain loop.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import nn

import report
from arms import Arm, Padded
from corpus import length_sorted_batches
from rounds import alternate, ratios, spelled
from speed import SCHEDULE, TINY, VOCABULARY, own, padding, peer
from surd.data.batch import Batch
from surd.measure.watch import Watch, watch
from surd.seed import seed_all
from workers import Worker

LIMIT = 1.03
"""A watched training may take so many times as long."""


@dataclass
class Watched:
    """An arm with the watch around it: the three lines of its documentation."""

    arm: Arm
    every: int
    looking: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.name = watched(self.arm.name)
        self.looking = watch(self.arm.model, self.arm.optimizer, every=self.every)

    @property
    def model(self) -> nn.Module:
        return self.arm.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.arm.optimizer

    def step(self, batch: Batch, padded: Padded) -> float:
        loss = self.arm.step(batch, padded)
        self.looking.step(loss)
        return loss


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    seed_all(arguments.seed)
    batches, longest = length_sorted_batches(arguments.data, arguments.out, VOCABULARY, arguments.tokens)
    chosen = [batches[(2 * n + 1) * len(batches) // (2 * arguments.batches)] for n in range(arguments.batches)]
    interval = [chosen[step % len(chosen)] for step in range(arguments.every)]
    arms = {"ours fp32": partial(own, torch.float32), "HF eager": partial(peer, longest, "eager")}
    rate = SCHEDULE(1, 1, TINY.d_model)
    workers = [
        Worker(name, build, interval, rate, arguments.threads, arguments.seed, keep_memory=True)
        for plain, arm in arms.items()
        for name, build in ((plain, arm), (watched(plain), partial(wrapped, arm, arguments.every)))
    ]
    seconds = alternate(workers, Worker.pass_over, arguments.rounds)
    for worker in workers:
        worker.close()
    result = {
        "every": arguments.every,
        "real_tokens_a_batch": sum(batch.tokens for batch in chosen) // len(chosen),
        "padding": padding(chosen),
        "threads": arguments.threads,
        "seconds": seconds,
        "cost": {plain: cost(seconds[plain], seconds[watched(plain)]) for plain in arms},
        "limit": LIMIT,
    }
    dear = [plain for plain, ratio in result["cost"].items() if ratio["median"] > LIMIT]
    report.write("watch", "What the watch costs", result, table(result), arguments.results)
    if dear:
        raise SystemExit(f"more than {LIMIT - 1:.0%}: {', '.join(dear)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="folder with train, val and test_2016_flickr, .en.gz and .de.gz")
    parser.add_argument("out", type=Path, help="folder for the prepared text")
    parser.add_argument("--every", type=int, default=100, help="interval of the watch, and updates a round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all arms")
    parser.add_argument("--batches", type=int, default=4, help="different batches")
    parser.add_argument("--tokens", type=int, default=1024, help="padded tokens a side of a batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    return parser.parse_args()


def watched(name: str) -> str:
    return f"{name}, watched"


def wrapped(build: Callable[[], Arm], every: int) -> Watched:
    return Watched(build(), every)


def cost(plain: list[float], looked_at: list[float]) -> dict[str, float]:
    """How many times as long a watched round takes: the ratio of medians, and the smallest and largest in a round."""
    within = ratios({"watched": plain, "plain": looked_at}, "plain")["watched"]
    return {
        "median": statistics.median(looked_at) / statistics.median(plain),
        "min": within["min"],
        "max": within["max"],
    }


def table(result: dict) -> str:
    """The arms, and what they did."""
    rows = [
        (
            plain,
            f"{statistics.median(result['seconds'][plain]) / result['every'] * 1000:.1f} ms",
            f"{statistics.median(result['seconds'][watched(plain)]) / result['every'] * 1000:.1f} ms",
            spelled(ratio),
        )
        for plain, ratio in result["cost"].items()
    ]
    told = (
        f"Rounds of {result['every']} updates, one of them observed; about {result['real_tokens_a_batch']:,} real "
        f"tokens a batch (source and target together), {result['threads']} threads; medians of "
        f"{len(next(iter(result['seconds'].values())))} rounds, ratio of medians (smallest–largest of a round).\n\n"
    )
    return told + report.markdown_table(("arm", "an update", "watched", "times as long"), rows)


if __name__ == "__main__":
    main()
