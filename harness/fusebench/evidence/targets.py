"""NVIDIA's architectures of static evidence, and all by name: the capacity of one multiprocessor, and the GPU assumed for each.

Sources, by the kind of fact:

* capacity of a multiprocessor (warps, blocks, shared memory, registers, the system's part of a block's shared memory): the tables
  "Technical Specifications per Compute Capability" and "Shared Memory Capacity per Compute Capability" of NVIDIA's CUDA programming guide;
  libcu++'s `cuda::arch_traits` has the same figures.  For the H200 also read off one by Nsight Compute (`device__attribute_*`);
* its allocation (units of registers and of shared memory, quarters): CUDA's occupancy calculator, `cuda_occupancy.h`, which agrees with
  `occupancy.py` over all four (tests/evidence/test_occupancy.py compiles it and compares);
* totals of a GPU (multiprocessors, L2, memory): its driver's report, from the source named beside it.
"""

from __future__ import annotations

import msgspec

from ..errors import FusebenchError, UnknownNameError
from ..naming import architecture_of
from .amd_targets import AMD_TARGETS, AmdTarget

WARP = 32
KIB = 1024


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture.  Sizes are bytes, registers are 32-bit."""

    name: str
    """`sm_90`, the compilers' spelling."""
    capability: int
    """10 x major + minor."""
    gpu: str
    """The GPU assumed: kernels choose their launches by its count of multiprocessors."""
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    warps: int
    """Warps resident at once on a multiprocessor; likewise below."""
    blocks: int
    shared: int
    shared_per_block: int
    """The most bytes that a launch may request, once it has opted in."""
    registers: int = 65536
    registers_per_thread: int = 255
    sub_partitions: int = 4
    """Each owns a quarter of the registers, and a warp stays in one."""
    register_unit: int = 256
    """A warp gets registers in multiples of this."""
    barriers: int | None = None
    """Block barriers, shared by the resident blocks; None if the occupancy calculator knows no limit (before 9.0)."""
    shared_unit: int = 128
    shared_reserved: int = KIB
    """Shared memory that the system takes from every block, from compute capability 8.0 on."""
    threads_per_block: int = 1024

    @property
    def major(self) -> int:
        return self.capability // 10

    @property
    def minor(self) -> int:
        return self.capability % 10

    @property
    def disassembly(self) -> str:
        """The dialect for nvdisasm: with the architecture-specific instructions (`a`), if there are any."""
        return f"SM{self.capability}a" if self.capability >= 90 else f"SM{self.capability}"


TARGETS = {
    target.name: target
    for target in (
        Target(
            name="sm_80",
            capability=80,
            gpu="NVIDIA A100-SXM4-80GB",
            # OpenXLA's description of this GPU, a100_sxm_80.txtpb; NVIDIA A100 Tensor Core GPU architecture whitepaper
            multiprocessors=108,
            l2_bytes=40 * KIB**2,
            memory_bytes=85_100_068_864,
            warps=64,
            blocks=32,
            shared=164 * KIB,
            shared_per_block=163 * KIB,
        ),
        Target(
            name="sm_90",
            capability=90,
            gpu="NVIDIA H200",
            # `device__attribute_*` of an H200, driver 580.159, as Nsight Compute 2025.3.1 reports them
            multiprocessors=132,
            l2_bytes=60 * KIB**2,
            memory_bytes=150_109_880_320,
            warps=64,
            blocks=32,
            barriers=64,
            shared=228 * KIB,
            shared_per_block=227 * KIB,
        ),
        Target(
            name="sm_100",
            capability=100,
            gpu="NVIDIA B200",
            # OpenXLA's description of this GPU, b200.txtpb, which its driver's answers were written into
            multiprocessors=148,
            l2_bytes=132_644_864,
            memory_bytes=191_514_411_008,
            warps=64,
            blocks=32,
            barriers=64,
            shared=228 * KIB,
            shared_per_block=227 * KIB,
        ),
        Target(
            name="sm_120",
            capability=120,
            gpu="NVIDIA GeForce RTX 5090",
            # `deviceQuery` of two RTX 5090, CUDA 12.8, in NVIDIA/nccl issue 1637; NVIDIA RTX Blackwell GPU architecture whitepaper
            multiprocessors=170,
            l2_bytes=96 * KIB**2,
            memory_bytes=33_680_457_728,
            warps=48,
            blocks=24,
            barriers=24,
            shared=100 * KIB,
            shared_per_block=99 * KIB,
        ),
    )
}


AnyTarget = Target | AmdTarget
ALL_TARGETS: dict[str, AnyTarget] = {**TARGETS, **AMD_TARGETS}


def target(name: str) -> AnyTarget:
    """The target with this name, of NVIDIA or AMD.

    Raises:
        UnknownNameError: there is none; the message names the nearest, or all.
    """
    try:
        return ALL_TARGETS[name]
    except KeyError:
        raise UnknownNameError("target", name, ALL_TARGETS, "--arch") from None


ON_A_CPU = "sm_90"
"""The target without a GPU and without --arch."""


class NoTargetError(FusebenchError):
    """The GPU has no target."""


def target_of(kind: str, gpu: str, capability: tuple[int, int] | None = None) -> Target:
    """The target of a device's kernels; ON_A_CPU's for a CPU.

    Args:
        kind: `cpu` or `cuda`.
        gpu: its name, as the driver reports it.
        capability: major and minor, where they are known: a stored record has the name alone.

    Raises:
        NoTargetError: the GPU has another architecture, or an unknown name.
    """
    if kind == "cpu":
        return TARGETS[ON_A_CPU]
    name = f"sm_{capability[0]}{capability[1]}" if capability is not None else architecture_of(gpu)
    if name not in TARGETS:
        raise NoTargetError(f"there is no static target for {gpu}{f' ({name})' if name else ''}; the targets are {', '.join(TARGETS)}")
    return TARGETS[name]
