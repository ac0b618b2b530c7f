"""The preparation of every timed call: inputs restored, the host given a head start, the caches of instructions and data emptied, in that
order.

Lines that a kernel persists in the L2 survive the emptying by reading.  They exist only while a part of the cache is set aside for them,
which drivers do by themselves (11.8 MB on an H200).  Where there is such a part, it is emptied between any two calls that share memory, so
that no call finds lines of its own.  It costs a wait for the device, so that calls on other memory do without: lines of another arm leave a
call less cache, never data, and in a balanced order every arm's calls follow every other's.

The head start keeps the GPU busy with untimed work while the host queues the whole call, so that gaps inside a chain of launches are the
GPU's own.  Emptying the cache takes a part of that time (66 us on an H200); a spin takes the rest.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schema import CacheState, Sample
from .arm import Arm

if TYPE_CHECKING:
    import torch

CACHE_MULTIPLES = 4
"""The eviction buffer is this many times the last-level cache: replacement is not exactly least-recently-used."""
UNKNOWN_CPU_CACHE = 32 * 2**20
"""Bytes assumed for a CPU's last-level cache where the system does not report it."""
CPU_EVICTION_LIMIT = 256 * 2**20
"""Servers report hundreds of megabytes of cache that many virtual machines share; reading four times that before every call would
take longer than most calls.  A CPU's `cold` is therefore cold up to this many bytes."""
CYCLES_PER_US = 2000
"""Clock cycles per microsecond at just under 2 GHz."""
CHAIN_FACTOR = 4.0
"""Under the profiler, a chain of launches takes the host up to four times its usual time (seen on an H200: 3.9)."""
SINGLE_FACTOR = 2.0
"""One launch has no gap inside, however late the host makes it: the GPU should only not idle for long before it."""
SPIN_LIMIT_US = 4000.0
EVICTIONS = 9
LIMIT_PERSISTING_L2 = 0x06
"""`CU_LIMIT_PERSISTING_L2_CACHE_SIZE` of the driver interface."""


class Preparation:
    """Called with an arm before each of its timed calls."""

    def __init__(self, device: torch.device, cache: CacheState, groups: Mapping[str, str] | None = None) -> None:
        """`groups`: by arm, its buffer group; arms without one share memory with no other."""
        self._on_gpu = device.type == "cuda"
        self._cold = cache is CacheState.COLD
        self.evict: Callable[[], None] = make_evictor(device) if self._cold else lambda: None
        self._host_us: Mapping[str, float] = {}
        self._eviction_us = 0.0
        self._launches: dict[str, int] = {}
        self._longer: Counter[str] = Counter()
        """By arm, how often its head start was doubled."""
        self._persisting = PersistingLines() if self._on_gpu and self._cold else None
        self._groups = groups or {}
        self._called: set[str] | None = None
        """Buffer groups that were called since persisting lines were released; None if that may be any."""

    def give_head_start(self, host_us: Mapping[str, float]) -> None:
        """Set the head start from each arm's host cost per call, in microseconds.  A CPU has none: there the host is the device."""
        if self._on_gpu:
            self._host_us = host_us
            self._eviction_us = _eviction_us(self.evict) if self._cold else 0.0

    def learn(self, samples: Iterable[Sample]) -> None:
        """Learn each arm's launches per call from samples; an arm with an unknown number (0, or never seen) counts as a chain."""
        for sample in samples:
            self._launches[sample.arm] = sample.kernels

    def lengthen(self, arm: str) -> None:
        """Double the head start of an arm whose calls waited for the host, for the rest of the case; `SPIN_LIMIT_US` bounds it."""
        self._longer[arm] += 1

    def spin_us(self, arm: str) -> float:
        """Microseconds that the GPU spins before it empties the cache for a call of this arm."""
        factor = (SINGLE_FACTOR if self._launches.get(arm) == 1 else CHAIN_FACTOR) * (1 << self._longer[arm])
        return max(0.0, min(SPIN_LIMIT_US, factor * self._host_us.get(arm, 0.0) - self._eviction_us))

    def release(self, arm: str) -> None:
        """Release persisting lines, if a call of the arm might find its own; this waits for the device, and so comes before the spin."""
        group = self._groups.get(arm, arm)
        if self._called is None or group in self._called:
            if self._persisting is not None:
                self._persisting.release()
            self._called = set()
        self._called.add(group)

    def __call__(self, arm: Arm) -> None:
        self.release(arm.name)
        arm.restore()
        if self._on_gpu:
            spin(self.spin_us(arm.name))
        self.evict()


class PersistingLines:
    """The lines that kernels persist in the L2 of the current device (CUDA C++ Programming Guide, "L2 Set-Aside Cache")."""

    def __init__(self, driver: Any = None) -> None:
        """`driver`: the driver's library; loaded unless given."""
        self._driver = _load_driver() if driver is None else driver
        self._limit = ctypes.c_size_t()

    @property
    def set_aside_bytes(self) -> int:
        """Bytes of the cache set aside for persisting lines; 0 where the driver does not tell.  An H200's driver sets 11.8 MB aside."""
        if self._driver is None or self._driver.cuCtxGetLimit(ctypes.byref(self._limit), LIMIT_PERSISTING_L2) != 0:
            return 0
        return int(self._limit.value)

    def release(self) -> None:
        """Return persisting lines to normal use, once the device has done all work; no effect where nothing is set aside.

        The driver does so when it is called, not in the order of a stream.
        """
        if not self.set_aside_bytes:
            return
        import torch

        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
            self._driver.cuCtxResetPersistingL2Cache()


def _load_driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _eviction_us(evict: Callable[[], None]) -> float:
    """Microseconds that `evict` keeps the current device busy: the median of several, by CUDA events."""
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(EVICTIONS + 1)]  # type: ignore[no-untyped-call]
    spin(1000.0)  # the host queues all of them meanwhile
    for mark in marks:
        mark.record()
        evict()
    torch.cuda.synchronize()
    return statistics.median(1e3 * float(before.elapsed_time(after)) for before, after in itertools.pairwise(marks))


def last_level_cache_bytes(device: torch.device) -> int:
    """Size in bytes of a GPU's L2, or of the last-level cache of the first CPU core."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [
        int(text[:-1]) * 2**10
        for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        if (text := file.read_text().strip())
    ]
    return max(sizes, default=UNKNOWN_CPU_CACHE)


def make_evictor(device: torch.device) -> Callable[[], None]:
    """A callable that empties the cache by reading a buffer of `CACHE_MULTIPLES` times its size on the current stream.

    On a GPU it first fills the multiprocessors' instruction caches with other code, which the reading then drives out of the L2.

    A memset would leave the cache full of dirty lines, and the next kernel would pay for their write-back: on an H200, 14.05 us instead of
    11.93 us for the same RMS norm of 50 MB.  Reading leaves clean lines only.
    """
    import torch

    size = CACHE_MULTIPLES * last_level_cache_bytes(device)
    words = (size if device.type == "cuda" else min(size, CPU_EVICTION_LIMIT)) // 4
    buffer = torch.ones(words, dtype=torch.float32, device=device)

    def evict() -> None:
        torch.sum(buffer)

    return _after_other_code(evict, device) if device.type == "cuda" else evict


def _after_other_code(evict: Callable[[], None], device: torch.device) -> Callable[[], None]:
    from .instruction_caches import make_code_evictor

    evict_code = make_code_evictor(device)

    def evict_both() -> None:
        evict_code()
        evict()

    return evict_both


def spin(us: float) -> None:
    """Keep the current stream busy for about `us` microseconds.

    It does nothing for 0, nor while a graph is captured, which the host launches whole (`timing.timers.cuda_graph`).
    """
    import torch

    if us > 0 and not torch.cuda.is_current_stream_capturing():
        launch_spin(us)


def launch_spin(us: float) -> None:
    """Launch a spin of about `us` microseconds on the current stream, also into a graph that is being captured."""
    import torch

    torch.cuda._sleep(int(us * CYCLES_PER_US))  # type: ignore[no-untyped-call]
