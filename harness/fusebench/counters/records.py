"""The value types of hardware counters: frozen, serialisable, the same for every source (`ncu_report` or raw CSV)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ..schema import Case, Environment, Role

COUNTERS_VERSION = 1
"""Version of these records; written into `ncu.json`."""


class CaptureStatus(StrEnum):
    """The result of a kernel on a case."""

    CAPTURED = "captured"
    UNSUPPORTED = "unsupported"
    """The kernel declines the case; the reason is recorded."""
    NOT_RUNNABLE = "not_runnable"
    """A library that the kernel needs is absent."""
    NO_LAUNCH = "no_launch"
    """The call launched nothing on the GPU."""
    FAILED = "failed"
    """The kernel raised or crashed, or Nsight Compute failed on it."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a kernel, as Nsight Compute saw it."""

    name: str
    """The function's name."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: dict[str, float]
    """By Nsight Compute's names, in base units whatever the report shows: nanoseconds, bytes, hertz; shares (`.pct`, `pct_of_peak…`) in
    percent."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one case: the launches of one call."""

    case: str
    suite: str
    op: str
    kernel: str
    """`op/name@version`."""
    role: Role
    shape: str
    revision: str = msgspec.field(name="side", default="")
    """Empty, or the revision of the kernels folder where two are captured (`base`)."""
    status: CaptureStatus
    reason: str = ""
    minimum_bytes: int
    """Bytes that the op must read and write."""
    launches: tuple[Launch, ...] = ()
    report: str = ""
    """File name of the `.ncu-rep`, in the run's folder."""
    seconds: float = 0.0

    @property
    def case_key(self) -> str:
        """`suite:case`."""
        return f"{self.suite}:{self.case}"


class CounterRun(msgspec.Struct, frozen=True, kw_only=True):
    """All captures of one `fusebench ncu`; `ncu.json` in the run's folder."""

    version: int = COUNTERS_VERSION
    id: str
    created: str
    command: str
    ncu_version: str
    metric_set: str
    """`quick`, `memory`, `full`, or `named`."""
    metrics: tuple[str, ...]
    """The requested metrics."""
    cache_control: str
    """`all`: Nsight Compute flushes the caches before every replay pass; `none`."""
    clock_control: str
    """Always `none`: the card's clocks are left alone."""
    environment: Environment
    base: str = ""
    """Origin of the captures with side `base`: a commit, a folder of kernels, or another run; empty without any."""
    sources: str = ""
    """SHA-256 over every file of the kernels folders, the base's included; empty in older records."""
    resumed_from: tuple[str, ...] = ()
    """Ids of the stopped runs that this one continued."""
    cases: tuple[Case, ...]
    captures: tuple[Capture, ...]
    warnings: tuple[str, ...] = ()
    complete: bool = True
