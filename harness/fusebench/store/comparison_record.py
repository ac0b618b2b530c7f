"""The record of `fusebench ab`: two versions of a kernels folder, compared kernel by kernel and case by case in one run.

`ab.json` is this record.  `COMPARISON_VERSION` is raised whenever a reader of the previous version could misread the new one.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ..schema import (
    AAPair,
    Accuracy,
    Attachment,
    CalibrationNote,
    Case,
    Confirmation,
    Environment,
    Estimate,
    Finding,
    Floor,
    Role,
    SamplingPlan,
    Spending,
    Status,
    Verdict,
    limit_of,
)
from ..stats.sequential import Plan

COMPARISON_VERSION = 1


class RevisionPresence(StrEnum):
    """Which revisions have a kernel."""

    BOTH = "both"
    NEW = "new"
    """Only the head revision."""
    REMOVED = "removed"
    """Only the base revision."""


class BaseRevision(msgspec.Struct, frozen=True, kw_only=True):
    """The base revision of the comparison."""

    asked: str
    """The commit as the user named it, or the folder."""
    commit: str = ""
    """Empty for a folder."""
    merge_base: bool = False
    """Whether `commit` is the merge base of HEAD and the named commit."""
    notes: tuple[str, ...] = ()


class ComparedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case with what the run measured for the case itself."""

    case: Case
    shape: str
    same_as: str = ""
    """Key of the case with the same op and parameters that was measured instead."""
    copy_us: Estimate | None = None
    stream_us: Estimate | None = None
    """The streaming yardstick, as in `CaseSummary`."""
    stream_shape: str = ""
    floor: Floor | None = None
    """The floor of a cold call, as in `CaseSummary`; None in older records."""
    control: str = ""
    """The kernel that the control arm is a second copy of."""
    control_ratio: Estimate | None = None
    """Time of that kernel over the time of its copy: 1.0 within noise, or the rounds are biased."""
    replicates: int = 0
    gpu_seconds: float = 0.0
    """Seconds of timed rounds, without confirmation."""
    repeated_rounds: int = 0
    """Rounds timed again because the device waited for the host within a call."""

    @property
    def limit_us(self) -> float | None:
        """The time that the share of SOL is taken of, as `CaseSummary.limit_us`."""
        return limit_of(self.stream_shape, self.stream_us, self.copy_us, self.floor)


class ComparedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one case, head against base."""

    case: str
    suite: str
    op: str
    kernel: str
    role: Role
    presence: RevisionPresence = msgspec.field(name="standing")
    covers: str = ""
    """The part of the op that the kernel computes; empty for the whole op, and in older records."""
    changed_files: tuple[str, ...] = ()
    """Differing source files of the kernel, by path within the kernels folder; empty for identical sources."""
    changed_data: tuple[str, ...] = ()
    """Those that are no code: equal machine code does not show what the kernel reads from them."""
    same_root: bool = True
    """Whether every file of the kernels folders is the same in both revisions; true in older records, which do not say."""
    same_code: bool | None = None
    """Whether both revisions launch the same machine code; None if unknown."""
    new_status: Status | None = None
    """Outcome of the head's kernel; `not_runnable` or `unsupported` where neither revision can run it here. None if it was not run."""
    old_status: Status | None = None
    reason: str = ""
    """Why its times were not compared."""
    new_us: float | None = None
    old_us: float | None = None
    launches: int = 0
    """Launches of one call of the base's kernel; 0 if it was not timed, if the timer sees none, and in older records."""
    finding: Finding | None = None
    """The finding from the replicates of the first process."""
    confirmation: Confirmation | None = None
    adjusted_p: float | None = None
    """The finding's p-value after correction for all comparisons of the run, in the finding's direction."""
    new_accuracy: Accuracy | None = None
    old_accuracy: Accuracy | None = None
    verdict: Verdict
    attachments: tuple[Attachment, ...] = ()
    """Evidence about a regression; empty without evidence, and in older records."""

    @property
    def absent(self) -> bool:
        """Whether it cannot run on this machine in either revision, as a peer whose package is not installed."""
        return self.new_status is Status.NOT_RUNNABLE

    @property
    def case_key(self) -> str:
        return f"{self.suite}:{self.case}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable record. Its raw samples, fresh processes included, lie beside it in `samples.parquet`."""

    comparison_version: int = COMPARISON_VERSION
    id: str
    created: str
    """UTC, ISO 8601."""
    command: str
    timer: str
    timer_fallback: str = ""
    plan: SamplingPlan
    """Rounds, cache state and trimming; its number of replicates is not used, see `looks`."""
    looks: Plan
    environment: Environment
    """Environment of the head revision: its commit, and whether the tree differs from it."""
    base: BaseRevision
    sources: str = ""
    """SHA-256 over every file of both revisions' kernels folders; empty in older records."""
    resumed_from: list[str] = []
    """Ids of the stopped comparisons that this one continued."""
    cases: list[ComparedCase]
    kernels: list[ComparedKernel]
    aa_pairs: list[AAPair] = msgspec.field(name="twins")
    """A/A comparisons: identical code in both revisions, and the control arms."""
    calibration: CalibrationNote | None = None
    """Calibration of the comparison's device; None for a device without calibration."""
    spending: Spending | None = None
    waited_s: float = 0.0
    """Seconds until the device was free and idle, before anything was measured; 0 in older records."""
    warnings: list[str] = []
    complete: bool = True
    exit_code: int = 0
