"""Ctrl-C and SIGTERM during a training: the first asks it to stop after its step, the second stops it at once."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Called by the loop after every step: true once a signal has come.

    Before the loop has asked for the first time, nobody would hear a request: a signal stops at once then.
    """

    def __init__(self) -> None:
        self.received = self.heard = False

    def __call__(self) -> bool:
        self.heard = True
        return self.received

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.received or not self.heard:
            raise KeyboardInterrupt
        self.received = True


@contextmanager
def stop_on_signal() -> Generator[StopRequest]:
    """While inside, SIGINT and SIGTERM only set the request; outside the main thread signals are left as they are."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, request.receive) for number in numbers]
    try:
        yield request
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
