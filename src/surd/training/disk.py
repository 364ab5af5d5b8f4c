"""When the disk refuses while a training runs: one message, what is safe, and how to go on."""

from collections.abc import Generator
from contextlib import contextmanager

from surd.errors import SurdError
from surd.run import Run
from surd.training.checkpoint import Checkpoints


@contextmanager
def refusals_told(run: Run, checkpoints: Checkpoints) -> Generator[None]:
    """Turns what the system says inside (no space left, a folder that must not be written) into such a message."""
    try:
        yield
    except SurdError as error:  # a file that was named already
        if not isinstance(error.__cause__, OSError):
            raise
        raise SurdError(f"{error}. {_safe(run, checkpoints)}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SurdError(f"{error.filename or run.folder}: {reason}. {_safe(run, checkpoints)}") from error


def _safe(run: Run, checkpoints: Checkpoints) -> str:
    steps = checkpoints.steps()
    good = f"The checkpoint of step {steps[-1]} is good and stays." if steps else "There is no checkpoint yet."
    return f"{good} Once the disk can be written again, go on with: surd train --resume {run.folder}"
