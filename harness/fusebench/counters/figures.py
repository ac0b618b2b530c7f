"""The figures for readers, made from Nsight Compute's metrics; a figure that a set did not collect is None, never zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import msgspec

from .metric_sets import STALLS, stall_metric
from .metric_table import METRICS, SECTOR_BYTES
from .records import Capture, Launch

ISSUING = ("selected", "not_selected")
"""Warp states that are no wait: the warp issues, or could issue."""

WARP_STATES = frozenset(STALLS) - {"gmma"}
"""Every state of a resident warp except the one that only Hopper has; together they are all of its time."""


class Unit(StrEnum):
    """The unit of a figure; reports choose how to write it."""

    NANOSECONDS = "ns"
    COUNT = "count"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    PERCENT = "%"
    NUMBER = "number"


class Better(StrEnum):
    """The good direction of a change."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = ""
    """The figure describes the kernel, or is good only together with another figure."""


class LaunchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The known figures of one launch, by the keys of `METRICS`."""

    name: str
    blocks: int
    threads: int
    """Threads per block."""
    values: Mapping[str, float]
    """Collected metrics only, in base units."""
    stalls: Mapping[str, float]
    """Average cycles that a warp spends in each state between two of its instructions: warps in the state per issue (Little's law)."""

    def get(self, key: str) -> float | None:
        """The figure `key` of `METRICS`, or None if it was not collected.

        Raises:
            KeyError: no figure has this key; a misspelt key would otherwise look like an uncollected figure.
        """
        METRICS[key]
        return self.values.get(key)

    @property
    def dram_bytes(self) -> float | None:
        return _sum(self.get("dram_read"), self.get("dram_written"))

    @property
    def dram_rate(self) -> float | None:
        """Bytes per second between DRAM and the L2."""
        return _rate(self.dram_bytes, self.get("time"))

    @property
    def l2_read(self) -> float | None:
        """Bytes that multiprocessors read from the L2."""
        return _times(self.get("l2_read_sectors"), SECTOR_BYTES)

    @property
    def l2_written(self) -> float | None:
        """Bytes that multiprocessors store into the L2; DRAM receives them now or later."""
        return _times(self.get("l2_write_sectors"), SECTOR_BYTES)

    @property
    def l2_rate(self) -> float | None:
        return _rate(_sum(self.l2_read, self.l2_written), self.get("time"))

    @property
    def moved(self) -> float | None:
        """DRAM bytes caused by the launch: bytes read, and bytes stored, also those still in the L2 when it ended.

        None without `l2_write_sectors`: the bytes in DRAM by then are no substitute (see traffic.py).
        """
        written, stored = self.get("dram_written"), self.l2_written
        return _sum(self.get("dram_read"), max(written, stored) if written is not None and stored is not None else None)

    @property
    def moved_share(self) -> float | None:
        """`moved` in percent of DRAM's peak in that time: DRAM's throughput, scaled up by the stores that it had not received yet."""
        throughput, scale = self.get("dram_throughput"), _ratio(self.moved, self.dram_bytes)
        return throughput * scale if throughput is not None and scale is not None else None

    @property
    def load_sectors_per_request(self) -> float | None:
        return _ratio(self.get("load_sectors"), self.get("load_requests"))

    @property
    def store_sectors_per_request(self) -> float | None:
        return _ratio(self.get("store_sectors"), self.get("store_requests"))

    @property
    def local_bytes(self) -> float | None:
        """Bytes of local memory requested from the L1: spilled registers, and arrays indexed at run time."""
        return _times(_sum(self.get("local_load_sectors"), self.get("local_store_sectors")), SECTOR_BYTES)

    @property
    def busy_share(self) -> float | None:
        """Time with work of the average multiprocessor, in percent of the busiest one's."""
        return _times(_ratio(self.get("sm_active"), self.get("sm_active_most")), 100)

    @property
    def limits(self) -> dict[str, float]:
        """Blocks per multiprocessor that each collected resource allows."""
        found = {name: self.get(f"limit_{name}") for name in ("registers", "shared", "warps", "blocks", "barriers")}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow the fewest blocks; empty unless all limits were collected."""
        limits = self.limits
        if not {"registers", "shared", "warps", "blocks"} <= limits.keys():
            return ()
        fewest = min(limits.values())
        return tuple(name for name, limit in limits.items() if limit == fewest)

    @property
    def warp_latency(self) -> float | None:
        """Average cycles between two instructions of a warp; None unless all its states were collected."""
        return sum(self.stalls.values()) if self.stalls.keys() >= WARP_STATES else None

    @property
    def waits(self) -> tuple[tuple[str, float], ...]:
        """The waits of warps, longest first, each in percent of their time between two instructions."""
        latency = self.warp_latency
        if not latency:
            return ()
        found = [(reason, 100 * cycles / latency) for reason, cycles in self.stalls.items() if reason not in ISSUING and cycles > 0]
        return tuple(sorted(found, key=lambda one: -one[1]))


class Figure(msgspec.Struct, frozen=True):
    """One row of a table."""

    title: str
    unit: Unit
    value: Callable[[LaunchFigures], float | None]
    better: Better = Better.NEITHER
    additive: bool = False
    """Whether a chain's figure is the sum over its launches; otherwise each launch has its own."""
    scatter: float = 1.0
    """Percent by which two captures of the same code may differ; a smaller change is neither better nor worse.  DRAM reads of the same
    bytes differed by up to 0.4 % over the profiled launches."""
    shown_from: float = -math.inf
    """Rows are left out where every value is below this."""


CLOCK_SCATTER = 5.0
"""Percent by which the times of two captures may differ.  The clocks are left alone: over five launches profiled within half a minute on an
H200 the multiprocessors' clock varied from 1.90 to 1.99 GHz.  Use `fusebench ab` to find whether a kernel became faster."""

WAIT_SHOWN_FROM = 2.0
"""Percent of a warp's time: kinds of wait below it, two in three of the 17, get no row."""


def _of(key: str) -> Callable[[LaunchFigures], float | None]:
    METRICS[key]
    return lambda launch: launch.get(key)


def _waiting(reason: str) -> Figure:
    def value(launch: LaunchFigures) -> float | None:
        return dict(launch.waits).get(reason, 0.0) if launch.waits else None

    return Figure(f"waiting: {reason.replace('_', ' ')}", Unit.PERCENT, value, shown_from=WAIT_SHOWN_FROM)


FIGURES = (
    Figure("time", Unit.NANOSECONDS, _of("time"), Better.LOWER, additive=True, scatter=CLOCK_SCATTER),
    Figure("registers per thread", Unit.COUNT, _of("registers"), Better.LOWER),
    Figure("shared memory per block", Unit.BYTES, _of("shared_bytes"), Better.LOWER),
    Figure("blocks", Unit.COUNT, lambda launch: launch.blocks),
    Figure("threads per block", Unit.COUNT, lambda launch: launch.threads),
    Figure("waves", Unit.NUMBER, _of("waves")),
    Figure("theoretical occupancy", Unit.PERCENT, _of("theoretical_occupancy"), Better.HIGHER),
    Figure("achieved occupancy", Unit.PERCENT, _of("achieved_occupancy"), Better.HIGHER),
    Figure("instructions executed", Unit.COUNT, _of("instructions"), Better.LOWER, additive=True),
    Figure("instructions issued", Unit.COUNT, _of("issued"), Better.LOWER, additive=True),
    Figure("issue slots used", Unit.PERCENT, _of("issue_active")),
    Figure("eligible warps per scheduler", Unit.NUMBER, _of("eligible_warps"), Better.HIGHER),
    Figure("compute throughput", Unit.PERCENT, _of("compute_throughput")),
    Figure("memory throughput", Unit.PERCENT, _of("memory_throughput")),
    Figure("DRAM read", Unit.BYTES, _of("dram_read"), Better.LOWER, additive=True),
    Figure("DRAM written", Unit.BYTES, _of("dram_written"), additive=True),
    Figure("DRAM read and stores", Unit.BYTES, lambda launch: launch.moved, Better.LOWER, additive=True),
    Figure("DRAM rate", Unit.BYTES_PER_SECOND, lambda launch: launch.dram_rate),
    Figure("DRAM throughput", Unit.PERCENT, _of("dram_throughput")),
    Figure("L2 read", Unit.BYTES, lambda launch: launch.l2_read, Better.LOWER, additive=True),
    Figure("L2 stores", Unit.BYTES, lambda launch: launch.l2_written, Better.LOWER, additive=True),
    Figure("L2 rate", Unit.BYTES_PER_SECOND, lambda launch: launch.l2_rate),
    Figure("L2 throughput", Unit.PERCENT, _of("l2_throughput")),
    Figure("L2 hit rate", Unit.PERCENT, _of("l2_hit_rate")),
    Figure("L1 hit rate", Unit.PERCENT, _of("l1_hit_rate")),
    Figure("sectors per global load", Unit.NUMBER, lambda launch: launch.load_sectors_per_request),
    Figure("sectors per global store", Unit.NUMBER, lambda launch: launch.store_sectors_per_request),
    Figure("bytes used per loaded sector", Unit.NUMBER, _of("load_bytes_per_sector"), Better.HIGHER),
    Figure("bytes used per stored sector", Unit.NUMBER, _of("store_bytes_per_sector"), Better.HIGHER),
    Figure("local memory", Unit.BYTES, lambda launch: launch.local_bytes, Better.LOWER, additive=True),
    Figure("busy multiprocessors", Unit.PERCENT, lambda launch: launch.busy_share, Better.HIGHER),
    Figure("cycles between a warp's instructions", Unit.NUMBER, lambda launch: launch.warp_latency),
    *(_waiting(reason) for reason in STALLS if reason not in ISSUING),
)
"""In display order."""


def launch_figures(launch: Launch) -> LaunchFigures:
    """The figures of one launch; a metric without a number counts as not collected."""
    values = {key: launch.metrics.get(metric.name, math.nan) for key, metric in METRICS.items()}
    stalls = {reason: launch.metrics.get(stall_metric(reason), math.nan) for reason in STALLS}
    return LaunchFigures(
        name=launch.name,
        blocks=math.prod(launch.grid),
        threads=math.prod(launch.block),
        values={key: value for key, value in values.items() if math.isfinite(value)},
        stalls={reason: cycles for reason, cycles in stalls.items() if math.isfinite(cycles)},
    )


def call_figures(capture: Capture) -> tuple[LaunchFigures, ...]:
    """The figures of every launch of the call, in order."""
    return tuple(launch_figures(launch) for launch in capture.launches)


def total(figure: Figure, launches: tuple[LaunchFigures, ...]) -> float | None:
    """`figure` of the whole call: the sum over the launches, or the one launch's own.

    None if a launch lacks it, if there is no launch, and for a chain's figure that is not additive.
    """
    if len(launches) == 1:
        return figure.value(launches[0])
    return total_of(figure.value, launches) if figure.additive else None


def worth_showing(figure: Figure, values: Iterable[float | None]) -> bool:
    """Whether to show a row of `figure`: one of its values is known and large enough to matter."""
    return any(value is not None and value >= figure.shown_from for value in values)


def total_of(value: Callable[[LaunchFigures], float | None], launches: tuple[LaunchFigures, ...]) -> float | None:
    """The sum of `value` over `launches`; None if one lacks it, or there is none."""
    return _sum(*map(value, launches)) if launches else None


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _rate(bytes_: float | None, nanoseconds: float | None) -> float | None:
    return _times(_ratio(bytes_, nanoseconds), 1e9)
