"""The fixture `gpu_benchmark`: times a function of a test with fusebench's timers, into pytest-benchmark's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from . import measuring_of
from .playback import leave_out, playback

T = TypeVar("T")


class GpuBenchmark:
    """Call it once per test: `gpu_benchmark(function, *args, **kwargs)`."""

    minimum_bytes: int | None = None
    """Bytes that any implementation must move, for GB/s and `sol`; by default each tensor among the arguments is read once, and each
    result and overwritten argument written once."""

    def __init__(self, item: pytest.Item, benchmark: Any) -> None:
        self._item, self._benchmark = item, benchmark

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` once on the arguments themselves, time it on copies of them, and return the first call's result.

        Raises:
            pytest.fail.Exception: the test misses what its markers `speed` and `sol` ask.
            FusebenchError: the device is not fit to measure on, or the timer failed.
        """
        if not self._benchmark.enabled:
            self._note_untimed("benchmarks are disabled")
            return cast("T", self._benchmark(function, *args, **kwargs))
        from .measured_function import Comparison

        comparison = Comparison(self._item, function, args, kwargs)
        result, reason = comparison.first_call()
        if reason:
            leave_out(self._benchmark)
            self._note_untimed(reason)
            return cast("T", result)
        figures = comparison.measure(result, self.minimum_bytes)
        playback(self._item).play(self._benchmark, figures.seconds, figures.timer)
        self._benchmark.extra_info.update(figures.extra_info())
        measuring_of(self._item.config).shown[self._item.nodeid] = figures
        comparison.judge(figures)
        return cast("T", result)

    def _note_untimed(self, reason: str) -> None:
        """Say at the end of the session that the test was not timed."""
        asked = [name for name in ("speed", "sol") if self._item.get_closest_marker(name) is not None]
        judged = f", so {' and '.join(asked)} is not judged" if asked else ""
        measuring_of(self._item.config).reporter.note(f"{self._item.nodeid} is not timed{judged}: {reason}")


@pytest.fixture
def gpu_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> GpuBenchmark:
    """`gpu_benchmark(fn, x, y)` times `fn(x, y)` on the tensors' device: cold cache, random placements, device time on a GPU."""
    return GpuBenchmark(request.node, benchmark)
