"""Theoretical occupancy: how many blocks of a launch one multiprocessor holds, and which resource is the limit.

The rules are those of CUDA's occupancy calculator (`cudaOccMaxActiveBlocksPerMultiprocessor` in `cuda_occupancy.h`).  A warp gets registers
in units, from its own quarter of the multiprocessor.  A block gets shared memory in units, the system's own share included, and keeps its
block barriers as long as it lives.

On AMD they are those of LLVM's AMDGPU backend (`getOccupancyWithNumVGPRs`, `getOccupancyWithNumSGPRs`, `getMaxWorkGroupsPerCU`), with local
data share taken in its units.
"""

from __future__ import annotations

import msgspec

from .amd_targets import AmdTarget
from .targets import WARP, Target


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """How a launch fills a multiprocessor when it has enough blocks."""

    blocks: int
    """Resident blocks per multiprocessor; 0 if no block fits."""
    warps: int
    """Resident warps per multiprocessor."""
    share: float
    """Share of the warps that the multiprocessor can hold."""
    limited_by: tuple[str, ...]
    """All resources that allow only this number of blocks: `warps`, `blocks`, `registers`, `shared`, `barriers`; on AMD `waves`,
    `workgroups`, `vgprs`, `sgprs`, `lds`."""


def occupancy(target: Target, *, threads: int, registers: int, shared_bytes: int, block_barriers: int = 1) -> Occupancy:
    """Occupancy of a launch with blocks of `threads`.

    Args:
        registers: per thread.
        shared_bytes: per block, static and dynamic together, without the system's own.
        block_barriers: number that a block reserves.

    Raises:
        ValueError: `threads` is not positive.
    """
    if threads <= 0:
        raise ValueError(f"a block of {threads} threads: expected at least one")
    warps = -(-threads // WARP)
    limits = {
        "warps": target.warps // warps if threads <= target.threads_per_block else 0,
        "blocks": target.blocks,
        "registers": _blocks_by_registers(target, warps, registers),
        "shared": _blocks_by_shared(target, shared_bytes),
    }
    if target.barriers is not None and block_barriers > 1:  # one barrier per block never limits before `blocks` does
        limits["barriers"] = target.barriers // block_barriers
    blocks = min(limits.values())
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        share=blocks * warps / target.warps,
        limited_by=tuple(name for name, limit in limits.items() if limit == blocks),
    )


def amd_occupancy(target: AmdTarget, *, threads: int, vgprs: int, sgprs: int, shared_bytes: int) -> Occupancy:
    """Occupancy of a launch with workgroups of `threads`: blocks are workgroups, warps are waves.

    Args:
        vgprs: vector registers per lane, accumulation registers included.
        sgprs: scalar registers per wave.
        shared_bytes: local data share per workgroup, static and dynamic together.

    Raises:
        ValueError: `threads` is not positive.
    """
    if threads <= 0:
        raise ValueError(f"a workgroup of {threads} threads: expected at least one")
    waves = -(-threads // target.wave)
    limits = {
        "waves": target.warps // waves if threads <= target.threads_per_block else 0,
        "workgroups": target.workgroups if waves > 1 else target.warps,
        "vgprs": target.simds * (target.vgprs // round_up(max(1, vgprs), target.vgpr_unit)) // waves,
        "sgprs": target.simds * (target.sgprs // round_up(max(1, sgprs), target.sgpr_unit)) // waves,
    }
    if shared_bytes:
        limits["lds"] = target.shared // round_up(shared_bytes, target.shared_unit)
    workgroups = min(limits.values())
    return Occupancy(
        blocks=workgroups,
        warps=workgroups * waves,
        share=workgroups * waves / target.warps,
        limited_by=tuple(name for name, limit in limits.items() if limit == workgroups),
    )


def _blocks_by_registers(target: Target, warps: int, registers: int) -> int:
    if registers > target.registers_per_thread:
        return 0
    if registers == 0:
        return target.blocks
    per_warp = round_up(registers * WARP, target.register_unit)
    # A block's own limit counts its warps as if they filled the quarters evenly.
    if per_warp * round_up(warps, target.sub_partitions) > target.registers:
        return 0
    held = target.registers // target.sub_partitions // per_warp * target.sub_partitions
    return held // warps


def _blocks_by_shared(target: Target, shared_bytes: int) -> int:
    if shared_bytes > target.shared_per_block:
        return 0
    return target.shared // round_up(shared_bytes + target.shared_reserved, target.shared_unit)


def round_up(value: int, unit: int) -> int:
    """The least multiple of `unit` that is no less than `value`."""
    return -(-value // unit) * unit
