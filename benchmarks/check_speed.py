"""How long a check of GPT-2 small takes (124 M parameters): all of it, static rules, and a probe beside training.

The command as a user types it, with its imports, on two threads: of a folder with a configuration alone, which is
built, and with `--static` of a folder with weights. The probe is timed in turn with a plain forward and backward.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import report
from rounds import alternate, ratios, spelled
from surd.api import check
from surd.measure.calling.building import build_inputs
from surd.measure.probe import probe

SOURCE = Path(__file__).parent.parent / "src"
WHOLE, STATIC, TIMES = 20.0, 5.0, 3.0
"""Seconds and ratio that must not be passed."""
PLAIN, PROBE = "forward and backward", "probe"


@dataclass(frozen=True)
class Arm:
    """A call that is timed."""

    name: str
    call: Callable[[], object]

    def seconds(self) -> float:
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of the probe and of a plain pass")
    parser.add_argument("--calls", type=int, default=3, help="calls of each command")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(architectures=["GPT2LMHeadModel"]))
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(Path(folder) / "config")
        model.save_pretrained(Path(folder) / "weights")
        whole = [commanded(arguments.threads, Path(folder) / "config") for _ in range(arguments.calls)]
        command = [commanded(arguments.threads, Path(folder) / "weights", "--static") for _ in range(arguments.calls)]
        held = Arm("static", lambda: check(Path(folder) / "weights", static=True))
        held.call()  # whose imports do not count
        static = [held.seconds() for _ in range(arguments.calls)]
    seconds = alternate(arms(model), Arm.seconds, arguments.rounds)
    slower = ratios({PLAIN: seconds[PROBE], PROBE: seconds[PLAIN]}, PLAIN)[PROBE]
    result: dict[str, Any] = {
        "threads": arguments.threads,
        "whole": whole,
        "static": static,
        "probe": seconds,
        "ratio": slower,
    }
    rows = [
        ("surd check, built from config.json", told(whole), f"{WHOLE:g} s"),
        ("static rules of a folder with weights, beyond imports", told(static), f"{STATIC:g} s"),
        ("surd check --static of it, with imports", told(command), ""),
        ("a probe over a plain forward and backward", spelled(slower), f"{TIMES:g} times"),
    ]
    table = report.markdown_table(("GPT-2 small", "median (smallest–largest)", "at most"), rows)
    report.write("check_speed", "How long a check takes", result, table, arguments.results)
    fast = statistics.median(whole) <= WHOLE and statistics.median(static) <= STATIC and slower["median"] <= TIMES
    return int(not fast)


def commanded(threads: int, folder: Path, *words: str) -> float:
    """Seconds of one command, with Python's start and all imports."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": str(threads)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python keeps what it has compiled
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "surd", "check", str(folder), *words], env=environment, capture_output=True
    )
    if done.returncode:
        raise SystemExit(done.stdout.decode() + done.stderr.decode())
    return time.perf_counter() - start


def arms(model: Any) -> list[Arm]:
    """A probe with a loss, and what a step of training does of the same batch without its optimiser."""
    inputs = build_inputs(model)
    labels = inputs["input_ids"]

    def loss(output: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    def plain() -> None:
        loss(model(**inputs)).backward()
        model.zero_grad(set_to_none=True)

    return [Arm(PLAIN, plain), Arm(PROBE, lambda: probe(model, inputs))]


def told(seconds: list[float]) -> str:
    """Median, smallest and largest."""
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f}–{max(seconds):.1f})"


if __name__ == "__main__":
    sys.exit(main())
