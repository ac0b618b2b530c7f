"""Calls a function again and again from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

JOIN_S = 10.0
"""Longest wait for a call that runs when the thread shall end."""


class Periodic:
    """Calls `function` at once and every `interval_s` seconds after, from `start` to `stop`, in a daemon thread.

    Args:
        function: must not raise, which would end the thread.
        interval_s: seconds from the end of a call to the next one.
        name: the thread's.
    """

    def __init__(self, function: Callable[[], None], interval_s: float, *, name: str) -> None:
        self._function, self._interval_s, self._name = function, interval_s, name
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, once."""
        self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; harmless when called twice, or without `start`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=JOIN_S)
            self._thread = None

    def _loop(self) -> None:
        while True:
            self._function()
            if self._ended.wait(self._interval_s):
                return
