"""The value types of static evidence: frozen, serialisable, free of paths and times, so that equal code gives equal records."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ..schema import Language, Role
from .disassembly import Instructions
from .occupancy import Occupancy

EVIDENCE_VERSION = 2
"""Version of these records, of what is counted and how: part of every cache key, and written into baselines."""


class StaticStatus(StrEnum):
    """How far a kernel came on a case."""

    COMPILED = "compiled"
    UNSUPPORTED = "unsupported"
    """The kernel declines the case, with a reason."""
    NOT_RUNNABLE = "not_runnable"
    """A library that the kernel needs is absent."""
    LAUNCH_ERROR = "launch_error"
    """Its launch code raised, or launched nothing."""
    COMPILE_ERROR = "compile_error"


FAILED = frozenset({StaticStatus.LAUNCH_ERROR, StaticStatus.COMPILE_ERROR})
"""Statuses that mean exit code 5."""


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of what makes and reads machine code; empty where it is not installed."""

    triton: str
    ptxas: str
    ptxas_blackwell: str
    """The assembler that Triton uses for newer architectures; which those are depends on Triton."""
    nvrtc: str
    nvdisasm: str

    def compiler(self, language: Language) -> str:
        """What decides the machine code of kernels in `language`, on one line."""
        if language is Language.CUDA:
            return f"nvrtc {self.nvrtc}"
        return f"triton {self.triton}, ptxas {self.ptxas}, ptxas-blackwell {self.ptxas_blackwell}"

    @property
    def slug(self) -> str:
        """As a file name: `triton-3.9.0_nvrtc-13.4.92`."""
        return f"triton-{self.triton or 'none'}_nvrtc-{self.nvrtc or 'none'}"


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled specialisation.  Sizes are bytes."""

    entry: str
    compiler: str
    sha256: str
    """Of the instructions alone."""
    size: int
    registers: int
    """Per thread."""
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int
    block_barriers: int
    """Barriers that a block reserves: 16, all that there are, where their number is known only at run time."""
    dynamic_shared: int | None = None
    """Where the compiler decides it (Triton); else the launch does."""
    threads: int | None = None
    """Per block, likewise."""
    instructions: Instructions


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a kernel for a case."""

    grid: tuple[int, int, int]
    threads: int
    """Per block."""
    dynamic_shared: int
    occupancy: Occupancy
    code: Code


class KernelEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one kernel on one case of one target."""

    case: str
    """`suite:name`."""
    op: str
    shape: str
    params: str
    """Digest of the case's parameters: a case that keeps its name and changes its shape is another."""
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

    code: str
    grid: tuple[int, int, int]
    threads: int | None
    dynamic_shared: int | None


class CapturedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel launches for a case; `status` is COMPILED until its code says otherwise."""

    kernel: str
    role: Role
    language: Language
    status: StaticStatus
    reason: str = ""
    launches: tuple[CapturedLaunch, ...] = ()


class CapturedCase(msgspec.Struct, frozen=True, kw_only=True):
    """Every Triton and CUDA C++ kernel of the case's op, other libraries' (role `peer`) left out."""

    kernels: tuple[CapturedKernel, ...]
    not_loaded: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.not_loaded and all(kernel.status not in FAILED for kernel in self.kernels)
