"""Where the seconds of an evaluation go: named parts, each without those inside it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

BEFORE = "start of the judge, and the way to it"
"""Measured by the caller: what its request took beyond the judge's own work."""
OPS = "load the op and its split chain"
WARM = "the judge's first draw, while a process starts"
READY = "wait for the candidate's process"
IMPORT = "import the candidate"
ASK = "ask for support and contract"
FIRST_CALLS = "first batch of each shape, which compiles"
CALLS = "other batches of the candidate"
COPIES = "copies to and from processes"
DRAW = "draw inputs, float64 references, split chain"
COMPARE = "compare outputs"
INSPECT = "look for replaced functions"
BASELINE = "start of the split chain's process"
SPLIT_CALLS = "batches of the split chain, and the limit"
END = "end of the candidate's process"


class Phases:
    """Adds up seconds by name.  An inner part is not also the outer's, so that all parts together are at most the whole.

    What another thread does meanwhile counts nowhere.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0
        self._thread = threading.get_ident()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the block as `name`, and stop counting the part that it lies in."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def seconds(self) -> dict[str, float]:
        """Seconds by name, the most first."""
        self._count()
        most_first = sorted(self._seconds.items(), key=lambda part: -part[1])
        return {name: round(seconds, 3) for name, seconds in most_first}

    def _count(self) -> None:
        now = time.monotonic()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now
