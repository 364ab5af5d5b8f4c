"""Memory: how much of it this process can still have."""

from pathlib import Path

GROUP = Path("/sys/fs/cgroup")


def available() -> float:
    """Bytes that can be had, of the machine and of the group that the process is in; infinite where nobody tells."""
    return min(_of_machine(), _of_group())


def _of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(line for line in lines if line.startswith("MemAvailable"))
        return float(free.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return float("inf")


def _of_group() -> float:
    """Of a container: its limit less what it uses; either generation of control groups."""
    for limit, used in (
        (GROUP / "memory.max", GROUP / "memory.current"),
        (GROUP / "memory/memory.limit_in_bytes", GROUP / "memory/memory.usage_in_bytes"),
    ):
        try:
            return float(limit.read_text()) - float(used.read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return float("inf")
