"""Emptying the cache between timed calls, by reading.

A memset would leave the last-level cache full of dirty lines whose write-back the next kernel pays for (on an H200, 14.05 us
instead of 11.93 us for the same RMS norm of 50 MB).  Reading several times the cache leaves clean lines only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CACHE_MULTIPLES = 4
"""The eviction buffer is this many times the last-level cache: replacement is not exactly least-recently-used."""
UNKNOWN_CPU_CACHE = 32 * 2**20
"""Bytes assumed for a CPU's last-level cache where the system does not say."""
CPU_EVICTION_LIMIT = 256 * 2**20
"""Servers report hundreds of megabytes of cache that many virtual machines share; reading four times that before every call would
take longer than most calls.  A CPU's `cold` is therefore cold up to this many bytes."""


def last_level_cache_bytes(device: torch.device) -> int:
    """Size of the L2 of a GPU, or of the last-level cache of the first CPU core."""
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
    """A callable that reads a buffer of `CACHE_MULTIPLES` times the last-level cache on the current stream."""
    import torch

    size = CACHE_MULTIPLES * last_level_cache_bytes(device)
    words = (size if device.type == "cuda" else min(size, CPU_EVICTION_LIMIT)) // 4
    buffer = torch.ones(words, dtype=torch.float32, device=device)

    def evict() -> None:
        torch.sum(buffer)

    return evict
