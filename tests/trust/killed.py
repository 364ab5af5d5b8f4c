"""A training in a process of its own, which kills itself at a call that was chosen beforehand.

    python tests/trust/killed.py RUN begin PAIRS|TEXT [WORD ...]     a new training
    python tests/trust/killed.py RUN resume                          the same taken up again

`KILL=write:7` in the environment stops it dead (SIGKILL) at its seventh call of `surd.files.write`, half of whose
bytes are on disk by then; `KILL=Progress:7` does so once its seventh event of that kind was told. At the end it prints
how often each call was made.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

CALLS = ("open_file", "write", "sync", "rename", "sync_folder")
"""All that a training writes with; they are functions of `surd.files`."""


def die_at(kind: str, number: int, counts: Counter[str]) -> None:
    """Puts a counter around every call, and a kill at one of them."""
    from surd import files

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            counts[name] += 1
            if (name, counts[name]) == (kind, number):
                if name == "write":
                    os.write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return made

    originals = {name: getattr(files, name) for name in CALLS}
    wrapped = {name: counted(name, call) for name, call in originals.items()}
    for module in [one for name, one in sys.modules.items() if name.partition(".")[0] == "surd"]:
        for name, call in wrapped.items():
            if getattr(module, name, None) is originals[name]:
                setattr(module, name, call)


def child(run: Path, *words: str, kill: str = "") -> "subprocess.Popen[str]":
    """Starts such a process."""
    environment = os.environ | {"KILL": kill}
    command = [sys.executable, __file__, str(run), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main(run: Path, what: str, *words: str) -> None:
    """The training."""
    from training.tiny import tiny, tiny_text

    from surd.run import Run
    from surd.training.loop import train
    from surd.training.start import plan, train_new

    counts: Counter[str] = Counter()
    kind, _, at = os.environ.get("KILL", "").partition(":")
    number = int(at or 0)
    die_at(kind, number, counts)
    if what == "resume":
        events = train(Run.open(run))
    else:
        data, *settings = words
        draft = tiny_text if data.endswith(".txt") else tiny
        events = train_new(plan(draft(Path(data), *settings)), run)
    for event in events:
        told = type(event).__name__
        counts[told] += 1
        if (told, counts[told]) == (kind, number):
            os.kill(os.getpid(), signal.SIGKILL)
        print(told, flush=True)
    print(*(f"{name}:{counts[name]}" for name in CALLS))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
