"""Devices: where to compute, in which precision, and how much memory is free there."""

import ctypes
import os
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["bf16", "fp32"]


def default_device() -> "torch.device":
    """The best device of this machine: a CUDA card, then Apple's, then the processor."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def has_fast_bf16(device: "torch.device") -> bool:
    """Whether bf16 products are really faster than fp32 ones on the device.

    A CUDA card is believed. A processor is measured, once a process and in some milliseconds: there are processors
    whose bf16 instructions run at half the rate of their fp32 ones, and flags do not tell.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(_processor_flags() & BF16_FLAGS) and _bf16_gain() > 1.1


BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""How processors say that they have bf16 instructions; without any, bf16 is emulated."""


@cache
def _bf16_gain() -> float:
    """How many times faster than in fp32 the processor multiplies matrices of a small model's size in bf16."""
    import torch

    factors = {
        dtype: (torch.ones(1024, 256, dtype=dtype), torch.ones(256, 1024, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    }
    seconds = dict.fromkeys(factors, float("inf"))
    for _ in range(12):  # in turn, so that what else the machine does falls on both; the quickest is least disturbed
        for dtype, (left, right) in factors.items():
            began = time.perf_counter()
            left @ right
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds[torch.float32] / seconds[torch.bfloat16]


def default_precision(device: "torch.device") -> Precision:
    """bf16 (with fp32 master weights) where that is faster, else fp32."""
    return "bf16" if has_fast_bf16(device) else "fp32"


def keep_freed_memory() -> None:
    """Tells the C library (glibc) to keep freed memory for the next tensor instead of giving it back to the system.

    A training step frees and takes the same large tensors again and again; fetching their pages anew each time costs
    about a twentieth of the step. Does nothing where the library has no such switch.
    """
    trim_threshold, map_threshold, never = -1, -3, 2**31 - 1
    try:
        library = ctypes.CDLL(None)
        library.mallopt(map_threshold, 2**30)
        library.mallopt(trim_threshold, never)
    except (OSError, AttributeError, TypeError):  # another system, or another C library
        return


def available_memory(device: "torch.device | None" = None) -> int:
    """Bytes that can still be allocated: on a CUDA device, else in main memory within the limit of a container."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    limit = _container_memory()
    return _machine_memory() if limit is None else max(0, min(_machine_memory(), limit))


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor_flags() -> set[str]:
    """The processor's features as Linux names them (x86 calls the line flags, Arm Features); empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}


def _machine_memory() -> int:
    """Bytes that the system says can be allocated without swapping; half of all memory where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 * 1024**3  # a system that tells nothing: assume a small machine


def _container_memory() -> int | None:
    """Bytes left under the limit of the control group, None where there is none."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            return int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):  # no such group, or the word "max"
            continue
    return None
