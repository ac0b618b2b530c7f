"""The meaning of counters in words: small rules, each with its threshold and the threshold's source.

A rule takes the figures of one launch and returns a sentence with its numbers.  It returns None if it does not apply, or where a metric
was not collected.  `fusebench ncu` prints the sentences; docs/ncu.md explains them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec

from .figures import LaunchFigures, call_figures
from .metric_table import SECTOR_BYTES
from .records import Capture
from .traffic import megabytes, traffic

NEAR_PEAK = 80.0
"""Percent of a peak from which the peak bounds a kernel.  A plain copy on an H200 moves 80 % of DRAM's peak at 100 MB, 88 % at 2 GiB."""

COPY_SHARE = 75.0
"""Read and stored bytes in percent of DRAM's peak from which a kernel runs as fast as a copy.  On an H200 copies of 75 to 100 MB reach 77
to 80 %; DRAM itself is less busy, because part of their stores stays in the L2."""

FAR_FROM_PEAK = 60.0
"""Percent below which neither compute nor memory explains the time; Nsight Compute's own speed-of-light rule has the same bound."""

LONGEST_WAIT = 30.0
"""Percent of the time between a warp's instructions from which a rule names one kind of wait.  In profiles of the select01 kernels the wait
for loads takes 32 to 63 %, and no other kind of wait more than 12 %."""

LOW_OCCUPANCY = 50.0
"""Percent.  At half occupancy one 16-byte load in flight per thread keeps 16 kB per multiprocessor under way, 2.2 MB on an H200: its
4.8 TB/s for 0.45 us, the order of a memory's latency.  Below it a kernel depends on several loads in flight per thread."""

LIMIT_IN_FORCE = 0.8
"""Share of theoretical occupancy that is achieved when the limit is the cause, not imbalance or a lack of blocks."""

USED_SECTOR_BYTES = 24.0
"""Bytes used of a sector's 32.  Misaligned rows of 128 bytes use 4 sectors' worth of 5 at worst (25.6); a stride of two elements uses 16 or
fewer."""

EXCESS_TRAFFIC = 1.1
"""Bytes moved per byte of the op's minimum."""

EXCESS_BYTES = 256 * 1024
"""Fewer bytes above the minimum are code, constants and page tables: 16 to 20 kB in profiles of the select01 kernels."""

IDLE_TAIL = 5.0
"""Percent by which the average multiprocessor's time with work falls short of the busiest one's.  Nsight Compute called imbalanced the two
launches of a set of five where it is more than 6 %, and none of the three below 5 %."""

LOCAL_SHARE = 1.0
"""Percent of the sectors requested from the L1.  Less, such as a stack slot per block, has no measurable cost."""

LOW_ISSUE = 40.0
"""Percent of cycles with an issue; the fast select01 kernels have 52 to 55 %, the slow one of the chain 30 %."""

LATENCIES = {
    "long_scoreboard": "loads from memory",
    "short_scoreboard": "shared memory and special functions",
    "barrier": "the block's other warps at a barrier",
    "membar": "a memory fence",
    "drain": "stores to leave before a warp ends",
    "wait": "the previous instruction",
    "branch_resolving": "a branch",
    "imc_miss": "constants",
    "no_instruction": "instructions",
    "sleeping": "a sleep to end",
}
"""Warp states that are latencies, in words; the others (throttles, dispatch) are full queues."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence about a capture."""

    rule: str
    launch: int | None = None
    """Index of the launch among several, from 0; None for the whole call."""
    sentence: str


def read(capture: Capture) -> list[Reading]:
    """The sentences for `capture`: each launch in order, then the call."""
    launches = call_figures(capture)
    chain = len(launches) > 1
    found = [
        Reading(rule=name, launch=place if chain else None, sentence=sentence)
        for place, launch in enumerate(launches)
        for name, sentence in read_launch(launch)
    ]
    if sentence := excess_traffic(capture):
        found.append(Reading(rule=excess_traffic.__name__, sentence=sentence))
    return found


def read_launch(launch: LaunchFigures) -> Iterator[tuple[str, str]]:
    """Name and sentence of every rule that applies to `launch`."""
    for rule in LAUNCH_RULES:
        if sentence := rule(launch):
            yield rule.__name__, sentence


def memory_bound(launch: LaunchFigures) -> str | None:
    """DRAM, or another part of the way to memory, works near its peak, or bytes move as fast as in a copy."""
    dram, memory, moved = launch.get("dram_throughput"), launch.get("memory_throughput"), launch.moved_share
    if dram is not None and dram >= NEAR_PEAK:
        return f"memory-bound: DRAM works at {dram:.1f} % of its peak"
    if moved is not None and moved >= COPY_SHARE:
        while_running = "" if dram is None else f" (DRAM itself {dram:.1f} % while it ran: stores were still in the L2)"
        return f"memory-bound: reads and stores amount to {moved:.1f} % of DRAM's peak, as fast as a copy{while_running}"
    if memory is not None and memory >= NEAR_PEAK:
        return f"memory-bound before DRAM: the busiest of the caches and their links works at {memory:.1f} % of its peak"
    return None


def compute_bound(launch: LaunchFigures) -> str | None:
    """A part of the multiprocessor works near its peak."""
    compute = launch.get("compute_throughput")
    if compute is None or compute < NEAR_PEAK:
        return None
    return f"compute-bound: the busiest part of the multiprocessor works at {compute:.1f} % of its peak"


def latency_bound(launch: LaunchFigures) -> str | None:
    """Neither compute nor memory is near its peak, and warps wait for one kind of latency."""
    compute, memory, waits = launch.get("compute_throughput"), launch.get("memory_throughput"), launch.waits
    if compute is None or memory is None or not waits or max(compute, memory) >= FAR_FROM_PEAK or memory_bound(launch):
        return None
    reason, share = waits[0]
    if reason not in LATENCIES or share < LONGEST_WAIT:
        return None
    return (
        f"latency-bound: compute at {compute:.1f} %, memory at {memory:.1f} % of peak; warps spend {share:.1f} % of their time waiting for "
        f"{LATENCIES[reason]} ({reason.replace('_', ' ')})"
    )


def register_limited(launch: LaunchFigures) -> str | None:
    """Registers keep occupancy low where more occupancy could help."""
    registers = launch.get("registers")
    if registers is None:
        return None
    return _limited(launch, "registers", f"registers: {registers:.0f} per thread leave")


def shared_limited(launch: LaunchFigures) -> str | None:
    """Shared memory keeps occupancy low where more occupancy could help."""
    shared = launch.get("shared_bytes")
    if shared is None:
        return None
    return _limited(launch, "shared", f"shared memory: {shared / 1e3:.1f} kB per block leave")


def uncoalesced_loads(launch: LaunchFigures) -> str | None:
    """Global loads use too little of their sectors."""
    return _uncoalesced("loads", launch.get("load_bytes_per_sector"), launch.load_sectors_per_request)


def uncoalesced_stores(launch: LaunchFigures) -> str | None:
    """Global stores fill too little of their sectors."""
    return _uncoalesced("stores", launch.get("store_bytes_per_sector"), launch.store_sectors_per_request)


def small_grid(launch: LaunchFigures) -> str | None:
    """There are fewer blocks than multiprocessors."""
    multiprocessors = launch.get("multiprocessors")
    if multiprocessors is None or launch.blocks >= multiprocessors:
        return None
    return f"small grid: {launch.blocks} blocks leave {multiprocessors - launch.blocks:.0f} of {multiprocessors:.0f} multiprocessors idle"


def tail(launch: LaunchFigures) -> str | None:
    """The last wave of blocks is partial, and multiprocessors waited for it."""
    waves, busy = launch.get("waves"), launch.busy_share
    if waves is None or busy is None or waves <= 1 or 100 - busy < IDLE_TAIL:
        return None
    last = waves - math.floor(waves)
    if last < 0.005:  # Nsight Compute rounds waves to hundredths
        return None
    return (
        f"tail: {waves:.2f} waves, so the last fills {100 * last:.0f} % of the GPU; the average multiprocessor has work for {busy:.1f} % "
        "of the busiest one's time"
    )


def local_memory(launch: LaunchFigures) -> str | None:
    """Spills, or arrays indexed at run time, show in the traffic."""
    local, loads, stores = launch.local_bytes, launch.get("load_sectors"), launch.get("store_sectors")
    if local is None or loads is None or stores is None or local == 0:
        return None
    share = 100 * local / (local + SECTOR_BYTES * (loads + stores))
    if share < LOCAL_SHARE:
        return None
    return f"local memory: {megabytes(local)} of spills or run-time indexed arrays, {share:.1f} % of what the L1 is asked for"


def low_issue(launch: LaunchFigures) -> str | None:
    """Schedulers mostly find no ready warp, and memory's peak is not the reason."""
    issue, eligible, resident = launch.get("issue_active"), launch.get("eligible_warps"), launch.get("active_warps")
    if issue is None or eligible is None or resident is None or issue >= LOW_ISSUE or eligible >= 1 or memory_bound(launch):
        return None
    return f"low issue: schedulers issue in {issue:.1f} % of cycles; of {resident:.1f} resident warps {eligible:.2f} are ready on average"


def excess_traffic(capture: Capture) -> str | None:
    """The call moves more bytes than its op's minimum."""
    found = traffic(capture)
    if found is None or found.per_minimum_byte < EXCESS_TRAFFIC or found.moved - found.minimum < EXCESS_BYTES:
        return None
    return (
        f"more bytes than the op must move: {megabytes(found.moved)} read and stored, {found.per_minimum_byte:.2f} times its "
        f"{megabytes(found.minimum)}"
    )


LAUNCH_RULES: tuple[Callable[[LaunchFigures], str | None], ...] = (
    memory_bound,
    compute_bound,
    latency_bound,
    register_limited,
    shared_limited,
    uncoalesced_loads,
    uncoalesced_stores,
    local_memory,
    small_grid,
    tail,
    low_issue,
)
"""In display order."""


def _limited(launch: LaunchFigures, resource: str, words: str) -> str | None:
    """The sentence for a resource that limits occupancy, where that is low and no unit works at its peak."""
    theoretical, achieved = launch.get("theoretical_occupancy"), launch.get("achieved_occupancy")
    if theoretical is None or achieved is None or resource not in launch.limited_by or theoretical >= LOW_OCCUPANCY:
        return None
    if achieved < LIMIT_IN_FORCE * theoretical or memory_bound(launch) or compute_bound(launch):
        return None
    limits = launch.limits
    most = min(limits["warps"], limits["blocks"])
    return (
        f"limited by {words} {limits[resource]:.0f} of {most:.0f} blocks on a multiprocessor; achieved occupancy {achieved:.1f} % "
        f"of {theoretical:.1f} % possible"
    )


def _uncoalesced(what: str, used: float | None, sectors: float | None) -> str | None:
    if used is None or not sectors or used >= USED_SECTOR_BYTES:
        return None
    return (
        f"uncoalesced {what}: {used:.1f} of a sector's {SECTOR_BYTES} bytes are used; {sectors:.1f} sectors per request, where "
        f"{sectors * used / SECTOR_BYTES:.1f} would do"
    )
