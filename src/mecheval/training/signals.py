"""Ctrl-C and SIGTERM ask a run to save and stop, which it does between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Request:
    """Whether a signal has come."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[Request]:
    """Inside, the first SIGINT or SIGTERM only sets the request; a second one interrupts at once."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.signal = number

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
