"""AMD's architectures of static evidence: the capacity of one compute unit, and the GPU assumed for each.

Sources, by the kind of fact:

* waves, registers, local data share and their units of allocation: LLVM's AMDGPU backend (`AMDGPUBaseInfo.cpp`, `AMDGPU.td`), which
  compiles the kernels; each constant names its function.  tests/evidence/test_amd.py compares with the occupancy that LLVM prints;
* totals of a GPU (compute units, L2, memory): AMD's table "AMD GPU specifications" in the documentation of ROCm.

A wave is AMD's warp, a workgroup its block, the local data share (LDS) its shared memory.
"""

from __future__ import annotations

import msgspec

KIB = 1024


class AmdTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture.  Sizes are bytes, registers are 32-bit.  Fields that NVIDIA's targets have too have their names."""

    name: str
    """`gfx942`, the compilers' spelling."""
    major: int
    minor: int
    """As torch's `get_device_capability` has them on ROCm: the first digits of the name."""
    gpu: str
    """The GPU assumed: kernels choose their launches by its count of compute units."""
    multiprocessors: int
    """Compute units."""
    l2_bytes: int
    """Of one of the dies (XCD): they share no L2, and ROCm reports this figure."""
    memory_bytes: int
    shared: int
    """Local data share of a compute unit: `FeatureAddressableLocalMemorySize65536` and `...163840` in AMDGPU.td."""
    shared_unit: int
    """A workgroup gets local data share in multiples of this: `getLdsDwGranularity`, there in units of 4 bytes."""
    simds: int = 4
    """SIMD units of a compute unit, each with its own registers and waves: `getEUsPerCU`."""
    waves_per_simd: int = 8
    """`getMaxWavesPerEU` from gfx90a on."""
    workgroups: int = 16
    """Resident workgroups of more than one wave, for each takes a barrier: `getMaxWorkGroupsPerCU`."""
    vgprs: int = 512
    """Vector registers of each lane of a SIMD; accumulation registers (AGPRs) are of the same file: `getTotalNumVGPRs` from gfx90a on."""
    vgpr_unit: int = 8
    """A wave gets them in multiples of this: `getVGPRAllocGranule` from gfx90a on."""
    sgprs: int = 800
    """Scalar registers of a SIMD: `getTotalNumSGPRs`."""
    sgpr_unit: int = 16
    """`getSGPRAllocGranule`."""
    wave: int = 64
    """Lanes of a wave: `getWavefrontSize`."""
    threads_per_block: int = 1024
    """`getMaxFlatWorkGroupSize`."""

    @property
    def shared_per_block(self) -> int:
        """The most bytes of local data share that a workgroup may have: all of it."""
        return self.shared

    @property
    def warps(self) -> int:
        """Waves resident at once on a compute unit."""
        return self.simds * self.waves_per_simd

    @property
    def registers(self) -> int:
        """Vector registers of a compute unit, of all lanes."""
        return self.simds * self.vgprs * self.wave


AMD_TARGETS = {
    target.name: target
    for target in (
        AmdTarget(
            name="gfx942",
            major=9,
            minor=4,
            gpu="AMD Instinct MI300X",
            multiprocessors=304,
            l2_bytes=4 * KIB**2,
            memory_bytes=192 * KIB**3,
            shared=64 * KIB,
            shared_unit=512,
        ),
        AmdTarget(
            name="gfx950",
            major=9,
            minor=5,
            gpu="AMD Instinct MI355X",
            multiprocessors=256,
            l2_bytes=4 * KIB**2,
            memory_bytes=288 * KIB**3,
            shared=160 * KIB,
            shared_unit=1280,
        ),
    )
}
