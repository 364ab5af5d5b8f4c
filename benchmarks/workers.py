"""Arms that are timed in processes of their own, so that the memory settings of one side never help or hurt another."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import torch

from arms import Arm, Padded, set_rate
from marian import trainable
from surd.data.batch import Batch
from surd.device import keep_freed_memory
from surd.seed import seed_all


class Worker:
    """One arm in its own process; it sleeps while another one is timed."""

    def __init__(
        self,
        name: str,
        build: Callable[[], Arm],
        batches: Sequence[Batch],
        rate: float,
        threads: int,
        seed: int,
        keep_memory: bool,
    ) -> None:
        """`build` makes the arm from the `seed`; `keep_memory` sets the C library as surd's own training does."""
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        arguments = (theirs, build, list(batches), rate, threads, seed, keep_memory)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self.parameters = int(self._ours.recv())

    def pass_over(self) -> float:
        """Seconds for one step on each batch."""
        self._ours.send(True)
        return float(self._ours.recv())

    def close(self) -> None:
        self._ours.send(False)
        self._process.join()


def serve(
    pipe: Connection,
    build: Callable[[], Arm],
    batches: list[Batch],
    rate: float,
    threads: int,
    seed: int,
    keep_memory: bool,
) -> None:
    """The life of a worker's process."""
    torch.set_num_threads(threads)
    if keep_memory:
        keep_freed_memory()
    seed_all(seed)
    arm = build()
    set_rate(arm, rate)
    padded = [Padded.of(batch) for batch in batches]
    pipe.send(trainable(arm.model))
    while pipe.recv():
        start = time.perf_counter()
        for batch, cells in zip(batches, padded, strict=True):
            arm.step(batch, cells)
        pipe.send(time.perf_counter() - start)
