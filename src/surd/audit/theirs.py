"""Theirs: whether an exception came out of the model that is judged; every other one is a bug of ours."""

from types import TracebackType

import torch
from torch.nn.modules import module

CALL = ("_call_impl", "_wrapped_call_impl")
"""The functions of torch through which every module is called."""
BACKWARD = "_engine_run_backward"
"""The function of torch that runs a backward pass: what it raises lies in the graph that the model made."""
FULL = ("can't allocate memory", "not enough memory", "out of memory")


def theirs(error: Exception) -> str | None:
    """What the model raised, or what it asked of the memory, in one line; None where the mistake is ours."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in text for part in FULL):
        return f"there is too little memory for it ({text or type(error).__name__})"
    if _ran(error.__traceback__):
        return f"the model raised {type(error).__name__}: {text}"
    return None


def _ran(trace: TracebackType | None) -> bool:
    """Whether a module was at work, forwards or backwards."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if (code.co_filename == module.__file__ and code.co_name in CALL) or code.co_name == BACKWARD:
            return True
        trace = trace.tb_next
    return False
