"""The architectures that static evidence is made for: what one multiprocessor holds, and the GPU that stands for each.

Sources: the tables "Technical Specifications per Compute Capability" and "Shared Memory Capacity per Compute Capability" of NVIDIA's CUDA
programming guide; the allocation granularities are those of CUDA's occupancy calculator (`cuda_occupancy.h`), the same for all four.
"""

from __future__ import annotations

import msgspec

from ..errors import UnknownNameError

WARP = 32
KIB = 1024


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture.  Sizes are bytes, registers are 32-bit."""

    name: str
    """`sm_90`, as compilers spell it."""
    capability: int
    """10 x major + minor."""
    gpu: str
    """The GPU that is stood in for: kernels choose their launches by its count of multiprocessors."""
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    warps: int
    """Resident at once on a multiprocessor; likewise below."""
    blocks: int
    shared: int
    shared_per_block: int
    """The most that a launch may ask for, once it has opted in."""
    registers: int = 65536
    registers_per_thread: int = 255
    sub_partitions: int = 4
    """Each owns a quarter of the registers, and a warp lives in one."""
    register_unit: int = 256
    """Registers are given to a warp in multiples of this."""
    shared_unit: int = 128
    shared_reserved: int = KIB
    """Shared memory that the system takes of every block, from compute capability 8.0 on."""
    threads_per_block: int = 1024

    @property
    def major(self) -> int:
        return self.capability // 10

    @property
    def minor(self) -> int:
        return self.capability % 10

    @property
    def disassembly(self) -> str:
        """The dialect that nvdisasm must read: with the architecture-specific instructions (`a`), where there are any."""
        return f"SM{self.capability}a" if self.capability >= 90 else f"SM{self.capability}"


A100_MULTIPROCESSORS = 108  # NVIDIA A100 Tensor Core GPU architecture whitepaper
H200_MULTIPROCESSORS = 132  # NVIDIA H100 Tensor Core GPU architecture whitepaper (SXM5); the H200 is the same die; as its driver reports
B200_MULTIPROCESSORS = 148  # as the B200's driver reports
RTX_5090_MULTIPROCESSORS = 170  # NVIDIA RTX Blackwell GPU architecture whitepaper

TARGETS = {
    target.name: target
    for target in (
        Target(
            name="sm_80",
            capability=80,
            gpu="NVIDIA A100-SXM4-80GB",
            multiprocessors=A100_MULTIPROCESSORS,
            l2_bytes=40 * KIB**2,
            memory_bytes=80 * KIB**3,
            warps=64,
            blocks=32,
            shared=164 * KIB,
            shared_per_block=163 * KIB,
        ),
        Target(
            name="sm_90",
            capability=90,
            gpu="NVIDIA H200",
            multiprocessors=H200_MULTIPROCESSORS,
            l2_bytes=60 * KIB**2,  # as the H200's driver reports
            memory_bytes=141 * 10**9,
            warps=64,
            blocks=32,
            shared=228 * KIB,
            shared_per_block=227 * KIB,
        ),
        Target(
            name="sm_100",
            capability=100,
            gpu="NVIDIA B200",
            multiprocessors=B200_MULTIPROCESSORS,
            l2_bytes=126 * KIB**2,
            memory_bytes=180 * 10**9,
            warps=64,
            blocks=32,
            shared=228 * KIB,
            shared_per_block=227 * KIB,
        ),
        Target(
            name="sm_120",
            capability=120,
            gpu="NVIDIA GeForce RTX 5090",
            multiprocessors=RTX_5090_MULTIPROCESSORS,
            l2_bytes=96 * KIB**2,
            memory_bytes=32 * 10**9,
            warps=48,
            blocks=24,
            shared=100 * KIB,
            shared_per_block=99 * KIB,
        ),
    )
}


def target(name: str) -> Target:
    """The target called `name`.

    Raises:
        UnknownNameError: there is no such target; the nearest is offered.
    """
    try:
        return TARGETS[name]
    except KeyError:
        raise UnknownNameError("target", name, TARGETS, "--arch") from None
