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
    Role,
    SamplingPlan,
    Spending,
    Status,
    Verdict,
)
from ..stats.sequential import Plan

COMPARISON_VERSION = 1


class RevisionPresence(StrEnum):
    """Which revisions have a kernel."""

    BOTH = "both"
    NEW = "new"
    """Only this checkout."""
    REMOVED = "removed"
    """Only the other side."""


class BaseRevision(msgspec.Struct, frozen=True, kw_only=True):
    """What this checkout was compared with."""

    asked: str
    """The commit as the user named it, or the folder."""
    commit: str = ""
    """Empty for a folder."""
    merge_base: bool = False
    """Whether `commit` is the merge base of HEAD and what was asked for."""
    notes: tuple[str, ...] = ()


class ComparedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case with what the run measured for the case itself."""

    case: Case
    shape: str
    same_as: str = ""
    """Key of the case of the same op and parameters that was measured in this one's place."""
    copy_us: Estimate | None = None
    stream_us: Estimate | None = None
    control: str = ""
    """The kernel that the control arm is a second copy of."""
    control_ratio: Estimate | None = None
    """That kernel's time over its copy's: 1.0 within noise, or the rounds are biased."""
    replicates: int = 0
    gpu_seconds: float = 0.0
    """Seconds of timed rounds, confirmation left out."""
    repeated_rounds: int = 0
    """Rounds that were timed again, since the device had waited for the host inside of a call."""


class ComparedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one case, this checkout's against the other side's."""

    case: str
    suite: str
    op: str
    kernel: str
    role: Role
    presence: RevisionPresence = msgspec.field(name="standing")
    changed_files: tuple[str, ...] = ()
    """Files that the kernel is made of and that differ, by path within the kernels folder; none means that the sources are identical."""
    same_code: bool | None = None
    """Whether both sides launch the same machine code; None where that is not known."""
    new_status: Status | None = None
    """How far this checkout's kernel came; None where it was not run."""
    old_status: Status | None = None
    reason: str = ""
    """Why its times were not compared."""
    new_us: float | None = None
    old_us: float | None = None
    launches: int = 0
    """Of one call of the other side's kernel; 0 where it was not timed, where the timer sees none, and in older records."""
    finding: Finding | None = None
    """What the replicates of the first process say."""
    confirmation: Confirmation | None = None
    adjusted_p: float | None = None
    """The finding's p-value after correction for all comparisons of the run, in the finding's direction."""
    new_accuracy: Accuracy | None = None
    old_accuracy: Accuracy | None = None
    verdict: Verdict
    attachments: tuple[Attachment, ...] = ()
    """Evidence about a regression; empty where there is none, and in older records."""

    @property
    def case_key(self) -> str:
        return f"{self.suite}:{self.case}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable record.  Raw samples, also those of fresh processes, lie beside it in `samples.parquet`."""

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
    """Of this checkout: its commit, and whether the tree differs from it."""
    base: BaseRevision
    cases: list[ComparedCase]
    kernels: list[ComparedKernel]
    aa_pairs: list[AAPair] = msgspec.field(name="twins")
    """Comparisons of a kernel with itself: identical code of both sides, and the control arms."""
    calibration: CalibrationNote | None = None
    """Of the device that the comparison was made on; None where it was not calibrated."""
    spending: Spending | None = None
    warnings: list[str] = []
    complete: bool = True
    exit_code: int = 0
