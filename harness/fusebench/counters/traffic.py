"""A kernel's traffic against its op's minimum: bytes read from DRAM and bytes stored, per byte of the minimum.

A store ends in the L2, and its line leaves for DRAM when it must make room.  The bytes in DRAM at the kernel's end therefore show how full
the L2 was, not how much the kernel stores: a kernel whose output fits in the L2 seems to write almost nothing.  DRAM receives every stored
byte later, so stores are counted where multiprocessors make them, in the L2.
"""

from __future__ import annotations

import msgspec

from .figures import call_figures, total_of
from .metric_table import METRICS
from .records import Capture

BELOW_MINIMUM = 0.97
"""A share of the minimum below this exceeds rounding and counting errors: bytes were in the L2 before, or work was left out."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one call, over all its launches."""

    launches: int
    minimum: int
    """Bytes that the op must read and write."""
    read: float
    """Bytes from DRAM."""
    written: float
    """Bytes that DRAM had received when each launch ended."""
    stored: float | None
    """Bytes that multiprocessors stored into the L2; None if the metric was not collected."""
    l2_read: float | None
    """Bytes that multiprocessors read from the L2, hits and misses."""

    @property
    def moved(self) -> float:
        """Bytes read from DRAM and bytes stored; a lower bound where `stored` is unknown."""
        return self.read + max(self.written, self.stored or 0.0)

    @property
    def per_minimum_byte(self) -> float:
        """Bytes moved per byte of the op's minimum."""
        return self.moved / self.minimum

    @property
    def left_in_l2(self) -> float | None:
        """Stored bytes that had not reached DRAM when the launches ended."""
        return None if self.stored is None else max(0.0, self.stored - self.written)


def traffic(capture: Capture) -> Traffic | None:
    """The call's traffic; None if DRAM bytes were not collected, the call launched nothing, or the op has no minimum."""
    launches = call_figures(capture)
    read = total_of(lambda launch: launch.get("dram_read"), launches)
    written = total_of(lambda launch: launch.get("dram_written"), launches)
    if read is None or written is None or capture.minimum_bytes <= 0:
        return None
    return Traffic(
        launches=len(launches),
        minimum=capture.minimum_bytes,
        read=read,
        written=written,
        stored=total_of(lambda launch: launch.l2_written, launches),
        l2_read=total_of(lambda launch: launch.l2_read, launches),
    )


def describe(found: Traffic, *, flushed: bool = True) -> str:
    """One line: reads, stores, the place of the stores, and bytes moved per byte of the op's minimum.

    Args:
        flushed: whether the caches were emptied before every pass (`cache_control` is `all`).
    """
    parts = [f"reads {megabytes(found.read)} from DRAM"]
    ratio = f"{found.per_minimum_byte:.2f} bytes per byte that the op must move ({megabytes(found.minimum)})"
    if found.stored is None:
        parts.append(f"{megabytes(found.written)} had been written to DRAM when it ended")
        ratio = f"at least {ratio}; without {METRICS['l2_write_sectors'].name} stores still in the L2 are not seen"
    else:
        left = found.left_in_l2 or 0.0
        kept = f", {megabytes(left)} of them still in the L2 when it ended" if left > 0 else ""
        parts.append(f"stores {megabytes(found.stored)}{kept}")
    return f"{' and '.join(parts)}: {ratio}{_between(found, flushed)}{_below(found, flushed)}"


def megabytes(value: float) -> str:
    """Decimal megabytes, the unit of memory rates."""
    return f"{value / 1e6:.1f} MB" if value >= 1e5 else f"{value / 1e6:.3f} MB"


def _between(found: Traffic, flushed: bool) -> str:
    if found.launches == 1 or not flushed:
        return ""
    return "; caches are flushed between its launches, so what one leaves to the next comes from DRAM, as it does not in every real call"


def _below(found: Traffic, flushed: bool) -> str:
    if found.stored is None or found.per_minimum_byte >= BELOW_MINIMUM:
        return ""
    if not flushed:
        return "; less than the minimum, since caches were not flushed and inputs were found in the L2"
    return "; less than the minimum with flushed caches: the kernel leaves work out, or the op's minimum counts bytes that this case spares"
