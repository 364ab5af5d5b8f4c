"""Theirs: whether an exception came out of the model that is judged; every other one is a bug of ours."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch
from torch.nn.modules import module

from surd.errors import raised

CALL = ("_call_impl", "_wrapped_call_impl")
"""The functions of torch through which every module is called."""
BACKWARD = "_engine_run_backward"
"""The function of torch that runs a backward pass: what it raises lies in the graph that the model made."""
OURS = str(Path(__file__).parents[1])
INSTALLED = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), "<")
"""Where Python's code lies, and that of packages."""
FULL = ("can't allocate memory", "not enough memory", "out of memory")


def theirs(error: Exception) -> str | None:
    """What the model raised, or what it asked of the memory, in one line; None where the mistake is ours."""
    text = raised(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in text for part in FULL):
        return f"there is too little memory for it ({text})"
    files = [*_files(error.__traceback__)]
    if isinstance(error, RecursionError) and not files[-1].startswith(OURS):
        return "it is nested too deep, or calls itself"
    if _ran(error.__traceback__) or not files[-1].startswith((OURS, *INSTALLED)):
        return f"the model raised {text}"
    return None


def _files(trace: TracebackType | None) -> Iterator[str]:
    """Where the code lies that was at work, the innermost last."""
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename
        trace = trace.tb_next


def _ran(trace: TracebackType | None) -> bool:
    """Whether a module was at work, forwards or backwards."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if (code.co_filename == module.__file__ and code.co_name in CALL) or code.co_name == BACKWARD:
            return True
        trace = trace.tb_next
    return False
