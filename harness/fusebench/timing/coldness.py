"""Proof that samples labelled cold are cold.

Two proofs, because neither sees everything.  The first tries the eviction on a buffer that fits the cache: it times a launch right after
the buffer was touched, and again after the cache was emptied as before every timed call.  Equal times mean that the eviction emptied
nothing.  The second checks the speed: no cold call moves its bytes faster than the device's memory.  Calls of a few megabytes are bound by
latency and stay below that limit even when warm, so the first proof is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ..errors import NotColdError
from .arm import Arm, Timer
from .preparation import last_level_cache_bytes, spin
from .replicate import time_rounds
from .yardstick import EQUAL, Mix, stream_of

if TYPE_CHECKING:
    import torch

MEMORY_FACTOR = 1.2
"""A call that moves what the memory must have moved at its end this many times as fast as a large stream was not cold.  An H200 copies
2 GiB at 4.25 TB/s; 1.2 times that is 5.1 TB/s, beyond the 4.8 TB/s of its memory's datasheet.  Written data may stay in the L2: an H100,
which has 50 MB of it, streamed 31 MB in and 28 MB out at 3.72 TB/s together, and large buffers at 3.02 TB/s."""
EVICTION_FACTOR = 1.1
"""An emptied cache must make the probe at least this many times slower.  On an H200 a probe of a quarter of the cache takes 5.9 us, and 7.9
after the cache was emptied.  Timers that use events add the same to both and see a factor of 1.2."""
PROBE_SHARE = 4
"""The probe's buffer is the cache divided by this.  It fits even where the halves of a cache keep copies of each other's lines."""
STREAM_MULTIPLES = 8
"""The large stream moves this many times the cache, in the case's mix of reads and writes."""
PROBES = 10
STREAMS = 5
SPIN_US = 100.0
"""The device waits this long before each probe, while the host queues the probe."""

_TOUCHED, _EMPTIED, _STREAM = "probe in a touched buffer", "probe after the cache was emptied", "large stream"


class Coldness(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of the cache and the memory, seen with the timer and the eviction of the case."""

    touched_us: float
    """The probe right after its buffer was touched."""
    emptied_us: float
    """The same launch after the cache was emptied."""
    memory_gb_per_s: float
    """Speed of a stream several times the cache, in 1e9 bytes per second, reads and writes together."""
    retries: int = 0
    """Number of repeats after a failure of the timer."""
    stream_bytes: int = 0
    """Bytes that the large stream reads and writes."""
    fastest_stream_us: float = 0.0
    """Its fastest call."""


def observe_coldness(timer: Timer, evict: Callable[[], None], device: torch.device, mix: Mix = EQUAL) -> Coldness:
    """Time the eviction probe and a large stream on a CUDA device, in some ten milliseconds; `contradiction` interprets them.

    Args:
        mix: proportion of reads and writes of the case.

    Raises:
        TimerError: the timer failed again and again.
    """
    import torch

    cache = last_level_cache_bytes(device)
    probe = torch.ones(max(1, cache // PROBE_SHARE // 4), dtype=torch.float32, device=device)
    large = mix.scaled(STREAM_MULTIPLES * cache)
    generator = torch.Generator(device=device).manual_seed(0)
    stream = stream_of(large, lambda words: torch.empty(words, dtype=torch.int32, device=device), device, generator)
    stream()  # compiles

    def touch() -> None:
        probe.neg_()

    arms = [Arm(_TOUCHED, touch, touch), Arm(_EMPTIED, touch, touch)] * PROBES + [Arm(_STREAM, stream, lambda: None)] * STREAMS

    def prepare(arm: Arm) -> None:
        spin(SPIN_US)
        arm.restore()
        if arm.name == _EMPTIED:
            evict()

    spans: dict[str, list[int]] = {}
    timed = time_rounds([arms], timer, prepare)
    for arm, timing in timed.calls():
        spans.setdefault(arm.name, []).append(timing.span_ns)
    return Coldness(
        touched_us=median(spans[_TOUCHED]) / 1e3,
        emptied_us=median(spans[_EMPTIED]) / 1e3,
        memory_gb_per_s=large.total / median(spans[_STREAM]),
        retries=timed.retries,
        stream_bytes=large.total,
        fastest_stream_us=min(spans[_STREAM]) / 1e3,
    )


def without_effect(seen: Coldness) -> str:
    """A message when emptying the cache made the probe no slower; else empty."""
    if seen.emptied_us >= EVICTION_FACTOR * seen.touched_us:
        return ""
    return (
        f"emptying the cache has no effect: a launch takes {seen.touched_us:.2f} us on a buffer that it just touched and "
        f"{seen.emptied_us:.2f} us after the cache was emptied; expected at least {EVICTION_FACTOR:g} times as long"
    )


def require_emptied(seen: Coldness | None) -> None:
    """Refuse an eviction without effect, for comparisons that have no label to refuse.

    Raises:
        NotColdError: emptying the cache had no effect.
    """
    if seen is not None and (reason := without_effect(seen)):
        raise NotColdError(
            f"{reason}. Cold samples cannot be taken here; take --cache warm, whose results are compared with warm ones only"
        )


def contradiction(moved: Mapping[str, tuple[int, float]], seen: Coldness | None) -> str:
    """Why the samples cannot have been cold; empty if no proof contradicts the label, and on a CPU (`seen` is None).

    Args:
        moved: by arm, the bytes that the memory must have moved when the call ends, and its time in microseconds.
    """
    if seen is None:
        return ""
    if reason := without_effect(seen):
        return reason
    limit = MEMORY_FACTOR * seen.memory_gb_per_s
    fastest = {name: bytes_ / time_us / 1e3 for name, (bytes_, time_us) in moved.items()}
    over = {name: speed for name, speed in fastest.items() if speed > limit}
    if not over:
        return ""
    name = max(over, key=over.__getitem__)
    others = f" (and {len(over) - 1} more)" if len(over) > 1 else ""
    memory = f"more than {MEMORY_FACTOR:g} x the {seen.memory_gb_per_s:.0f} GB/s of a stream that no cache holds"
    return f"{name}{others} moved what no cache spares it at {over[name]:.0f} GB/s, {memory}: part of its data was in the cache"
