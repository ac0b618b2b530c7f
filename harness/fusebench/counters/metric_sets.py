"""The counters to read: the three sets, the metrics that every capture yields, and names from the user.

Names are Nsight Compute's.  The sets hold plain hardware counters, one name per figure, and no `.min`/`.max` companions: every extra
counter may cost a replay pass.  Each name was seen with a value on an H200 (ncu 2025.3.1).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from ..errors import UnknownNameError, UsageError


class MetricSet(StrEnum):
    """How many counters are read."""

    QUICK = "quick"
    MEMORY = "memory"
    FULL = "full"


EVIDENCE = "evidence"
"""The set for a regression's evidence: the metrics of `full`, without Nsight Compute's own set for its viewer."""

NAMED = "named"
"""The set's name in a record where the user named the metrics."""

QUICK = (
    "gpu__time_duration.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "smsp__inst_issued.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__bytes.sum.per_second",
    "dram__bytes.sum.peak_sustained",
    "dram__cycles_elapsed.avg.per_second",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
)
"""Time, achieved occupancy, instructions, memory traffic with the stores still in the L2, and shares of the peaks."""

MEMORY = (
    *QUICK,
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
    "lts__t_sectors.sum",
    "lts__t_sectors.sum.per_second",
    "lts__t_sectors_srcunit_tex.sum",
)
"""`quick`, and the traffic through the caches: sectors per request, hit rates, local memory (spills), throughput."""

STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
"""Reasons why a resident warp does not issue, in Nsight Compute's words; `selected` is the warp that issues."""


def stall_metric(reason: str) -> str:
    """The metric of a stall reason: average number of warps that wait for it, per cycle with an issue."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


FULL = (
    *MEMORY,
    "smsp__average_warp_latency_per_inst_issued.ratio",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.per_cycle_active",
    "smsp__warps_active.avg.per_cycle_active",
    "smsp__warps_eligible.avg.per_cycle_active",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    "sm__inst_executed.avg.per_cycle_active",
    "sm__cycles_elapsed.avg",
    "sm__cycles_active.avg",
    "sm__cycles_active.min",
    "sm__cycles_active.max",
    *(stall_metric(reason) for reason in STALLS),
)
"""`memory`, and the schedulers' work: stall reasons, eligible warps, balance of the multiprocessors."""

SETS = {MetricSet.QUICK: QUICK, MetricSet.MEMORY: MEMORY, MetricSet.FULL: FULL}

ALWAYS = (
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__shared_mem_per_block_allocated",
    "launch__stack_size",
    "launch__waves_per_multiprocessor",
    "launch__sm_count",
    "launch__occupancy_limit_barriers",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "sm__maximum_warps_avg_per_active_cycle",
    "sm__maximum_warps_per_active_cycle_pct",
    "device__attribute_l2_cache_size",
    "profiler__replayer_passes",
)
"""Metrics of every capture, whatever the request: the launch, its theoretical occupancy, and the number of passes."""

_NOT_LISTED = ("launch__", "device__", "derived__", "profiler__", "sm__maximum_warps_", "smsp__maximum_warps_")
"""Prefixes of names that Nsight Compute takes although they are not in its list of hardware counters."""


def split_names(given: Sequence[str]) -> tuple[str, ...]:
    """Names from repeated, comma-separated options, once each.

    Raises:
        UsageError: no name is left, or a name stands for several metrics, which a record cannot hold.
    """
    names = tuple(dict.fromkeys(name.strip() for text in given for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--metrics: no name given; pass names such as dram__bytes_read.sum, separated by commas")
    for name in names:
        if ":" in name or "*" in name:
            raise UsageError(f"--metrics {name!r}: groups and patterns are not taken; give whole names, or a --set")
    return names


def require_known(names: Sequence[str], listed: Collection[str]) -> None:
    """Check the part before the first dot of each name against `listed`, the GPU's counters.

    Raises:
        UnknownNameError: a name is not listed.
    """
    for name in names:
        base, dot, rest = name.partition(".")
        if base not in listed and not name.startswith(_NOT_LISTED):
            raise UnknownNameError("metric", base, listed, where=f"--metrics{f' (.{rest} left aside)' if dot else ''}")


def wanted(name: str, asked: Collection[str]) -> bool:
    """Whether a column of Nsight Compute's table belongs in the record: requested, expanded from a request, or in every capture."""
    if name in asked or name in ALWAYS:
        return True
    base, _, rest = name.partition(".")
    return base in asked and rest in {"sum", "avg", "min", "max", "ratio", "pct"}


def missing(asked: Sequence[str], found: Collection[str]) -> list[str]:
    """The requested names without a value, in order."""
    return [name for name in asked if name not in found and not any(other.startswith(f"{name}.") for other in found)]
