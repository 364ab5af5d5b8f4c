"""The real command without its start: a process that has loaded everything, and forks for each command line.

A line of JSON on standard input holds the folder and the words; the answer is exit status and most memory held. The
folder has the file `given` as standard input, and gets `out` and `error`.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import surd.cli
import surd.commands.train
import surd.commands.translate
import surd.run.translator
import surd.training.merge
import surd.training.start  # noqa: F401


def command(folder: Path, words: list[str]) -> int:
    """Becomes `python -m surd`, for good; its exit status."""
    os.chdir(folder)
    given, out, error = (folder.with_name(f"{folder.name}.{name}") for name in ("given", "out", "error"))
    for descriptor, path, flags in ((0, given, os.O_RDONLY), (1, out, os.O_WRONLY), (2, error, os.O_WRONLY)):
        os.dup2(os.open(path, flags | os.O_CREAT), descriptor)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace")  # noqa: SIM115
    sys.argv = ["surd", *words]
    try:
        runpy.run_module("surd", run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush(), sys.stderr.flush()
    return 0


def serve() -> None:
    """Answers until standard input ends."""
    for line in sys.stdin:
        folder, words = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(command(Path(folder), words))
        _, status, usage = os.wait4(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), 1024 * usage.ru_maxrss]), flush=True)


if __name__ == "__main__":
    serve()
