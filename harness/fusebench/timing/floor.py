"""The floor of a short call: the time of its launch, of one access to memory, and of its bytes at the memory's speed.

Below some 10 us no launch reaches the memory's speed, and a streaming yardstick is a launch like any other: another one may be faster.  No
call that starts cold is faster than the sum of the three.  Launch and access are measured once per process, device and timer, with the
timer and the eviction of the cases; the speed is that of the large stream of the case's mix, which the proof of cold times.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ..schema import Floor
from .arm import Arm, Timer
from .coldness import SPIN_US, Coldness
from .replicate import time_rounds
from .yardstick import Mix

if TYPE_CHECKING:
    import torch

PROBES = 30
"""Calls of each kind: on an H200, the timestamps tick in 32 ns, and the median of these is stable to one tick."""

_EMPTY, _ONE_WORD = "empty launch", "launch that moves one word"


class LaunchCosts(NamedTuple):
    """Times of the smallest launches, in microseconds."""

    empty_us: float
    """A launch of one program that does nothing."""
    one_word_us: float
    """A launch of one program that loads a word that no cache holds, and stores it."""
    retries: int = 0
    """Number of repeats after a failure of the timer."""


_known: dict[tuple[str, str], LaunchCosts] = {}


def launch_costs(timer: Timer, evict: Callable[[], None], device: torch.device) -> LaunchCosts:
    """The costs on a CUDA device by `timer`, measured by the first call of the process and remembered.

    Raises:
        TimerError: the timer failed again and again.
    """
    key = (str(device), timer.name)
    if key not in _known:
        _known[key] = observe_launch_costs(timer, evict, _empty_call(device), _one_word_call(device))
        return _known[key]
    return _known[key]._replace(retries=0)


def observe_launch_costs(
    timer: Timer, evict: Callable[[], None], empty: Callable[[], object], one_word: Callable[[], object]
) -> LaunchCosts:
    """Time both launches, after the cache was emptied."""
    from .preparation import spin

    def prepare(arm: Arm) -> None:
        spin(SPIN_US)
        evict()

    for call in (empty, one_word):
        call()  # compiles
    arms = [Arm(_EMPTY, empty, lambda: None), Arm(_ONE_WORD, one_word, lambda: None)] * PROBES
    timed = time_rounds([arms], timer, prepare)
    spans: dict[str, list[int]] = {_EMPTY: [], _ONE_WORD: []}
    for arm, timing in timed.calls():
        spans[arm.name].append(timing.span_ns)
    return LaunchCosts(median(spans[_EMPTY]) / 1e3, median(spans[_ONE_WORD]) / 1e3, timed.retries)


def floor_of(costs: LaunchCosts, seen: Coldness, mix: Mix) -> Floor:
    """The floor of a call that moves the bytes of `mix`."""
    speed = seen.stream_bytes / (seen.fastest_stream_us - costs.one_word_us) / 1e3
    return Floor(
        launch_us=costs.empty_us,
        latency_us=max(0.0, costs.one_word_us - costs.empty_us),
        gb_per_s=speed,
        time_us=max(costs.empty_us, costs.one_word_us) + mix.total / speed / 1e3,
    )


def _empty_call(device: torch.device) -> Callable[[], object]:
    import torch

    from .stream_kernels import nothing

    word = torch.zeros(1, dtype=torch.int32, device=device)
    launch = nothing[(1,)]
    return lambda: launch(word, num_warps=1)


def _one_word_call(device: torch.device) -> Callable[[], object]:
    import torch

    from .stream_kernels import one_word

    words = torch.zeros(2 * LINES, dtype=torch.int32, device=device)
    launch = one_word[(1,)]
    return lambda: launch(words, words[LINES:], num_warps=1)


LINES = 1024
"""Words between the word that is read and the one that is written, so that they lie in different lines of every cache."""
