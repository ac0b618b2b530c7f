"""The metrics behind figures and rules: one table of key, Nsight Compute's name, unit and meaning.

Names and meanings follow the metrics reference in Nsight Compute's Kernel Profiling Guide; metric_sets.py assigns the metrics to sets.
"""

from __future__ import annotations

import msgspec

SECTOR_BYTES = 32
"""Bytes of a sector, the unit in which caches and DRAM move data (Kernel Profiling Guide, hardware model)."""


class Metric(msgspec.Struct, frozen=True):
    """One of Nsight Compute's metrics."""

    name: str
    unit: str
    """Its base unit, as in the records."""
    meaning: str


METRICS = {
    "time": Metric("gpu__time_duration.sum", "ns", "from the launch's start to its end on the GPU"),
    "registers": Metric("launch__registers_per_thread", "registers", "per thread"),
    "shared_bytes": Metric("launch__shared_mem_per_block_allocated", "bytes", "per block, the system's own and rounding included"),
    "waves": Metric("launch__waves_per_multiprocessor", "waves", "blocks over the blocks that the GPU holds at a time"),
    "multiprocessors": Metric("launch__sm_count", "multiprocessors", "that the launch may use"),
    "limit_registers": Metric("launch__occupancy_limit_registers", "blocks", "per multiprocessor, by registers"),
    "limit_shared": Metric("launch__occupancy_limit_shared_mem", "blocks", "per multiprocessor, by shared memory"),
    "limit_warps": Metric("launch__occupancy_limit_warps", "blocks", "per multiprocessor, by its warp slots"),
    "limit_blocks": Metric("launch__occupancy_limit_blocks", "blocks", "per multiprocessor, by its block slots"),
    "limit_barriers": Metric("launch__occupancy_limit_barriers", "blocks", "per multiprocessor, by its barriers"),
    "theoretical_occupancy": Metric(
        "sm__maximum_warps_per_active_cycle_pct", "%", "warps that the limits let reside, of the most that a multiprocessor holds"
    ),
    "achieved_occupancy": Metric(
        "sm__warps_active.avg.pct_of_peak_sustained_active", "%", "warps that do reside, while a multiprocessor has work"
    ),
    "sm_active": Metric("sm__cycles_active.avg", "cycles", "with a resident warp, on the average multiprocessor"),
    "sm_active_most": Metric("sm__cycles_active.max", "cycles", "with a resident warp, on the busiest multiprocessor"),
    "instructions": Metric("smsp__inst_executed.sum", "warp instructions", "executed"),
    "issued": Metric("smsp__inst_issued.sum", "warp instructions", "issued: those executed, and repetitions"),
    "issue_active": Metric("smsp__issue_active.avg.pct_of_peak_sustained_active", "%", "cycles in which a scheduler issues"),
    "eligible_warps": Metric("smsp__warps_eligible.avg.per_cycle_active", "warps", "ready to issue, per scheduler"),
    "active_warps": Metric("smsp__warps_active.avg.per_cycle_active", "warps", "resident, per scheduler"),
    "compute_throughput": Metric("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "the busiest part of the multiprocessor"),
    "memory_throughput": Metric(
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "%", "the busiest part of the way to memory"
    ),
    "dram_throughput": Metric("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%", "DRAM"),
    "dram_read": Metric("dram__bytes_read.sum", "bytes", "read from DRAM"),
    "dram_written": Metric("dram__bytes_write.sum", "bytes", "written to DRAM by the time the kernel ended"),
    "l2_read_sectors": Metric("lts__t_sectors_srcunit_tex_op_read.sum", "sectors", "that multiprocessors read from the L2"),
    "l2_write_sectors": Metric("lts__t_sectors_srcunit_tex_op_write.sum", "sectors", "that multiprocessors store into the L2"),
    "l2_throughput": Metric("lts__throughput.avg.pct_of_peak_sustained_elapsed", "%", "the busiest part of the L2"),
    "l2_hit_rate": Metric("lts__t_sector_hit_rate.pct", "%", "sectors found in the L2; stores count as found"),
    "l1_hit_rate": Metric("l1tex__t_sector_hit_rate.pct", "%", "sectors found in the L1; stores count as not found"),
    "load_requests": Metric("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "requests", "global loads of a warp"),
    "load_sectors": Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sectors", "that global loads ask for"),
    "store_requests": Metric("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "requests", "global stores of a warp"),
    "store_sectors": Metric("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sectors", "that global stores touch"),
    "load_bytes_per_sector": Metric(
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", "bytes", "of a sector's 32 that global loads use"
    ),
    "store_bytes_per_sector": Metric(
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio", "bytes", "of a sector's 32 that global stores fill"
    ),
    "local_load_sectors": Metric("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", "sectors", "of local memory, loaded"),
    "local_store_sectors": Metric("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum", "sectors", "of local memory, stored"),
}
