"""What attention statistics cost: time against a fused attention that only mixes values, memory against the weights.

Both arms in turn in one process, random queries and keys of std 1, every key seen; then once with a causal mask.
"""

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import report
from rounds import alternate, ratios, spelled
from surd.measure.softmax.statistics import attention_statistics

FUSED, OURS = "fused attention", "statistics"


@dataclass(frozen=True)
class Arm:
    """A call that is timed."""

    name: str
    call: Callable[[], object]

    def seconds(self) -> float:
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default, meaning in (
        ("length", 4096, "queries and keys whose time is taken"),
        ("long", 16384, "queries and keys whose memory is taken"),
        ("heads", 8, ""),
        ("d-k", 64, ""),
        ("threads", 2, ""),
        ("rounds", 21, "rounds of both arms"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    shape = (1, arguments.heads, arguments.length, arguments.d_k)
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        bytes_ = fresh.apply(peak_growth, ((1, arguments.heads, arguments.long, arguments.d_k), arguments.threads))
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    query, key, value = (torch.randn(shape) for _ in range(3))
    result = {
        "shape": shape,
        "threads": arguments.threads,
        "times as long": {
            sight: times_as_long(query, key, value, sight == "causal", arguments.rounds) for sight in ("all", "causal")
        },
        "memory": {"length": arguments.long, "bytes": bytes_, "weights": 4 * arguments.heads * arguments.long**2},
    }
    report.write("statistics", "What attention statistics cost", result, table(result), arguments.results)


@torch.no_grad()
def times_as_long(query: Tensor, key: Tensor, value: Tensor, causal: bool, rounds: int) -> dict[str, object]:
    """Seconds of both arms, and how many times as long as the fused attention the statistics take."""
    arms = [
        Arm(FUSED, lambda: F.scaled_dot_product_attention(query, key, value, is_causal=causal)),
        Arm(OURS, lambda: attention_statistics(query, key, causal=causal)),
    ]
    seconds = alternate(arms, Arm.seconds, rounds)
    slower = ratios({FUSED: seconds[OURS], OURS: seconds[FUSED]}, FUSED)[OURS]
    return {"seconds": seconds, "ratio": slower}


def peak_growth(shape: tuple[int, ...], threads: int) -> int:
    """Bytes by which the process grew at most; true of a process that has done nothing larger."""
    torch.set_num_threads(threads)
    query, key = torch.randn(shape), torch.randn(shape)
    attention_statistics(query[:, :, :512], key[:, :, :512])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attention_statistics(query, key)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def table(result: dict) -> str:
    """One line for each thing measured."""
    _, heads, length, d_k = result["shape"]
    rows = []
    for sight, found in result["times as long"].items():
        fused, ours = (1e3 * statistics.median(found["seconds"][name]) for name in (FUSED, OURS))
        rows.append((f"{sight} keys seen", f"{fused:.0f} ms", f"{ours:.0f} ms", spelled(found["ratio"])))
    memory = result["memory"]
    return (
        f"{heads} heads, {length:,} queries and keys, d_k {d_k}, fp32, {result['threads']} threads; medians, and the "
        "median (smallest–largest) of the ratios within a round.\n\n"
        + report.markdown_table(("", FUSED, OURS, "times as long"), rows)
        + f"\n\nMemory at {memory['length']:,}: {memory['bytes'] / 2**20:.0f} MiB more, "
        f"1/{memory['weights'] / memory['bytes']:.0f} of the weights' {memory['weights'] / 2**20:,.0f} MiB."
    )


if __name__ == "__main__":
    main()
