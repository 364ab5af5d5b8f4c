"""What all tests share: shapes are checked, warnings are errors, and no test hears another's random numbers."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

# Every shape in a signature of `surd.nn` is checked at each call. The hook must be set before the first import.
HOOK = jaxtyping.install_import_hook("surd.nn", "beartype.beartype")

ALLOWED_WARNINGS = {
    "ignore:.*torch.jit.* is deprecated:DeprecationWarning": "torch's compiler uses its own older parts",
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning": "torch's compiler meets its own renamed classes",
    "ignore:.*lr_scheduler.step.*:UserWarning": "torch.optim cannot see that the rate is set from outside",
    "ignore:Online softmax is disabled on the fly.*:UserWarning": "a remark of torch's compiler on its own choice",
}
"""Filters for warnings that others raise about themselves, each with its reason."""


def pytest_configure(config: pytest.Config) -> None:
    stay_on_one_core(os.environ.get("PYTEST_XDIST_WORKER"))
    # Tests start many processes, each of which would compile torch and transformers again: 6 s a time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for allowed in ALLOWED_WARNINGS:
        config.addinivalue_line("filterwarnings", allowed)


def stay_on_one_core(worker: str | None) -> None:
    """Gives each of several workers, with the processes that it starts, one core: else their threads wait in turn."""
    if worker is not None and hasattr(os, "sched_setaffinity"):  # Linux alone
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small matrices are no faster on more, and the other cores have tests of their own to run."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same global random state, whatever ran before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def compiled() -> Iterator[None]:
    """For tests that compile, or that train for many steps: checked functions break fullgraph and cost time a call."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return Path(__file__).parent.parent
