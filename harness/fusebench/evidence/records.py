"""The value types of static evidence: frozen, serialisable, free of paths and times, so that equal code gives equal records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec

from ..schema import KernelId, Language, Role
from .disassembly import Instructions
from .occupancy import Occupancy

EVIDENCE_VERSION = 2
"""Version of these records and of the counting; part of every cache key and of baselines."""


Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
CodeKey = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""Digest of a specialisation, which names its file in the cache."""


class StaticStatus(StrEnum):
    """The result of a kernel on a case."""

    COMPILED = "compiled"
    UNSUPPORTED = "unsupported"
    """The kernel declines the case; the reason is recorded."""
    NOT_RUNNABLE = "not_runnable"
    """A library that the kernel needs is absent."""
    LAUNCH_ERROR = "launch_error"
    """Its launch code raised, or launched nothing."""
    COMPILE_ERROR = "compile_error"


FAILED = frozenset({StaticStatus.LAUNCH_ERROR, StaticStatus.COMPILE_ERROR})
"""Statuses that mean exit code 5."""


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of the programs that make and read machine code; empty for one that is not installed."""

    triton: str
    ptxas: str
    ptxas_blackwell: str
    """The assembler that Triton uses for newer architectures; it depends on Triton's version."""
    nvrtc: str
    nvdisasm: str

    def compiler(self, language: Language, *, amd: bool = False) -> str:
        """The versions that decide the machine code of kernels in `language`, on one line.

        Args:
            amd: for an AMD target, whose LLVM and assembler are part of Triton.
        """
        if language is Language.CUDA:
            return f"nvrtc {self.nvrtc}"
        if amd:
            return f"triton {self.triton}"
        return f"triton {self.triton}, ptxas {self.ptxas}, ptxas-blackwell {self.ptxas_blackwell}"

    @property
    def slug(self) -> str:
        """As a file name: `triton-3.9.0_nvrtc-13.4.92`."""
        return f"triton-{self.triton or 'none'}_nvrtc-{self.nvrtc or 'none'}"


class AmdRegisters(msgspec.Struct, frozen=True, kw_only=True):
    """Figures that only AMD's architectures have."""

    accumulation: Natural
    """Accumulation registers (AGPRs) per lane, part of `Code.registers`."""
    scalar: Natural
    """Scalar registers (SGPRs) per wave."""
    spilled_vector: int
    """Vector registers that were spilled, to memory or to accumulation registers."""
    spilled_scalar: int
    """Scalar registers that were spilled, to lanes of vector registers or to memory."""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled specialisation.  Sizes are bytes.  On AMD, registers are vector registers (VGPRs), stack is scratch, shared is LDS."""

    entry: str
    compiler: str
    sha256: str
    """SHA-256 of the instructions alone."""
    size: Natural
    registers: Natural
    """Registers per thread."""
    stack: Natural
    spill_stores: Natural
    spill_loads: Natural
    static_shared: Natural
    block_barriers: Natural
    """Barriers that a block reserves: all 16 where their number is known only at run time."""
    dynamic_shared: Natural | None = None
    """In bytes, if the compiler sets it (Triton); otherwise the launch sets it."""
    threads: Positive | None = None
    """Threads per block, likewise."""
    instructions: Instructions
    amd: AmdRegisters | msgspec.UnsetType = msgspec.UNSET
    """Absent for NVIDIA's architectures."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a kernel for a case."""

    grid: tuple[int, int, int]
    threads: int
    """Threads per block."""
    dynamic_shared: int
    occupancy: Occupancy
    code: Code
    inputs: str = ""
    """Digest of all that decides `code`: source, constants, options and compiler (a `CodeKey`); empty in older baselines."""

    def waves(self, multiprocessors: int) -> float:
        """Blocks of the launch over those that a GPU of so many multiprocessors holds at a time; infinite where no block fits."""
        held = multiprocessors * self.occupancy.blocks
        return math.prod(self.grid) / held if held else math.inf


class KernelEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence on one kernel and case for one target."""

    case: str
    """`suite:name`."""
    op: str
    shape: str
    params: str
    """Digest of the case's parameters: a case that keeps its name and changes its shape is another case."""
    kernel: str
    role: Role
    language: Language
    status: StaticStatus
    reason: str = ""
    launches: tuple[Launch, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.case, self.kernel


class StaticReport(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence for one target."""

    target: str
    toolchain: Toolchain
    results: tuple[KernelEvidence, ...]
    not_loaded: tuple[str, ...] = ()
    """Kernel files that could not be loaded, with the reason."""

    @property
    def failed(self) -> bool:
        return bool(self.not_loaded) or any(result.status in FAILED for result in self.results)


class CapturedLaunch(msgspec.Struct, frozen=True):
    """A recorded launch; `code` is the key of its specialisation."""

    code: CodeKey
    grid: tuple[int, int, int]
    threads: Positive | None
    dynamic_shared: Natural | None


class CapturedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's launches for a case; `status` is COMPILED until its code says otherwise."""

    kernel: str
    role: Role
    language: Language
    status: StaticStatus
    reason: str = ""
    launches: tuple[CapturedLaunch, ...] = ()
    calls: str = ""
    """Digest of the torch operators between the launches and of the launches' scalar arguments; empty if unknown.  The same code may be
    called otherwise."""

    def __post_init__(self) -> None:
        KernelId.parse(self.kernel)  # a name that is none is no record


class CapturedCase(msgspec.Struct, frozen=True, kw_only=True):
    """Every Triton and CUDA C++ kernel of the case's op and its listed choices, without other libraries' (role `peer`)."""

    kernels: tuple[CapturedKernel, ...]
    not_loaded: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.not_loaded and all(kernel.status not in FAILED for kernel in self.kernels)


def matches_id(kernel: str, pattern: str | Sequence[str] | None) -> bool:
    """Whether the kernel `op/name@version` matches the glob `pattern`, or one of several, in any of its spellings; None matches all."""
    if pattern is None:
        return True
    identity = KernelId.parse(kernel)
    return any(identity.matches(one) for one in ([pattern] if isinstance(pattern, str) else pattern))
