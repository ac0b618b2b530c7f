"""Hands samples to pytest-benchmark through its own interface: a clock whose differences are the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


class Playback:
    """A timer for pytest-benchmark: it is read before and after each round, and the difference is the round's sample exactly."""

    def __init__(self) -> None:
        self.__name__ = "fusebench"
        """pytest-benchmark stores a timer by its name."""
        self._samples: list[float] = []
        self._reading = 0

    def __call__(self) -> float:
        """0 at the start of a round, its sample in seconds at the end."""
        place, is_end = divmod(self._reading, 2)
        self._reading += 1
        return self._samples[place] if is_end else 0.0

    def play(self, benchmark: Any, seconds: Sequence[float], timer: str) -> None:
        """Make `seconds` the rounds of pytest-benchmark's fixture; `timer` is stored as the name of the timer."""
        self._samples, self._reading, self.__name__ = list(seconds), 0, timer
        benchmark.pedantic(lambda: None, rounds=len(self._samples), iterations=1)


def leave_out(benchmark: Any) -> None:
    """Leave the test out of pytest-benchmark's table, as a disabled benchmark, which is no mistake of the test."""
    benchmark.disabled = True
    benchmark(lambda: None)


_KEY: pytest.StashKey[Playback] = pytest.StashKey()


def add_playback(item: pytest.Item, **options: Any) -> None:
    """Give the test's `benchmark` fixture a clock of its own, and other `options` of the marker `benchmark` that the test lacks."""
    known = item.get_closest_marker("benchmark")
    clock = item.stash[_KEY] = Playback()
    own = dict(known.kwargs) if known is not None else {}
    item.add_marker(pytest.mark.benchmark(**(options | own | {"timer": clock})), append=False)


def playback(item: Any) -> Playback:
    """The clock of `add_playback`."""
    found: Playback = item.stash[_KEY]
    return found
