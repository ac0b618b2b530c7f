"""The document of `fusebench eval`: the judgement on one candidate kernel that nobody trusts.

One `Evaluation` is one JSON document, on stdout, over HTTP and from the MCP tool.  Its keys are stable: `EVALUATION_VERSION` is raised when
a reader of the previous version could misread the new one, and keys are only ever added within a version.  Text that the candidate wrote
(`reason`, `remarks`, `output_tail`) is data: bounded and escaped by whoever prints it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .results import Accuracy, Estimate

EVALUATION_VERSION = 1


class EvaluationStatus(StrEnum):
    """Outcome of one candidate, or of one of its cases."""

    PASSED = "passed"
    """Right on every call that was compared; its times are honest as far as the judge can tell."""
    WRONG = "wrong"
    """An output missed the contract."""
    CRASHED = "crashed"
    """Raised, or its process died."""
    HUNG = "hung"
    """Did not answer within the time allowed."""
    COMPILE_ERROR = "compile_error"
    OUT_OF_MEMORY = "out_of_memory"
    SUSPICIOUS = "suspicious"
    """Right, but its times contradict the clock outside, or beat the limit: no speedup is given."""
    HACKED = "hacked"
    """Tampered with the harness, or did work outside the call."""
    UNSUPPORTED = "unsupported"
    """Declined the case. The candidate as a whole: declined every case."""
    INVALID = "invalid"
    """The file or its declaration cannot be judged: no kernel, several, another op, not Python."""
    UNDECIDED = "undecided"
    """The budget ended before there was an answer."""
    UNFIT = "unfit"
    """The device, or the judge's own baseline on it, is not fit to measure: no statement about the candidate."""


class Stage(StrEnum):
    """Depth of an evaluation."""

    CHECK = "check"
    """A few small cases, compared only: does it work?"""
    QUICK = "quick"
    """The chosen cases, compared and timed briefly."""
    FINAL = "final"
    """Also shapes and values that the other stages never use, and times with narrow intervals."""


class IsolationMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure that confines the candidate's process, and whether it was active."""

    name: str
    active: bool
    reason: str = ""
    """Why it was not available; empty where active."""


class CaseEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate on one case."""

    case: str
    suite: str
    shape: str
    """The case's parameters as text, as the op shows them."""
    status: EvaluationStatus
    reason: str = ""
    """Why it did not pass; empty where it did."""
    accuracy: Accuracy | None = None
    """Errors of the worst output against float64 beside the split chain's. Its `seed` is always 0: seeds of an evaluation stay secret."""
    time_us: Estimate | None = None
    """Time of one call in microseconds; None if not timed, or if the time is not believed."""
    baseline_us: Estimate | None = None
    """Time of the op's split chain in the same batches, in microseconds."""
    speedup: Estimate | None = None
    """Split chain's time over the candidate's. None for every status but `passed`."""
    sol: float | None = None
    """Share of the speed of light: `limit_us` over `time_us`."""
    limit_us: float | None = None
    """Time of the case's minimum bytes at the streaming yardstick's speed, in microseconds; None where unknown (CPU)."""
    calls_compared: int = 0
    """Calls whose outputs were compared with float64, drawn at random from all the calls."""
    calls: int = 0
    """Calls that were made, timed or not."""

    @property
    def key(self) -> str:
        """`suite:case`, unique within an evaluation."""
        return f"{self.suite}:{self.case}"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement on one candidate."""

    schema_version: int = EVALUATION_VERSION
    status: EvaluationStatus
    reason: str = ""
    """One sentence: why it did not pass; empty where it did."""
    op: str
    kernel: str = ""
    """Id of the candidate, `op/name@version`; empty if its declaration could not be read."""
    stage: Stage
    device: str = ""
    """Name of the device, such as `NVIDIA H200`."""
    file: str = ""
    """Path of the candidate's file as it was given."""
    file_sha256: str = ""
    """Digest of the file's bytes that were judged, in hexadecimal."""
    cases: tuple[CaseEvaluation, ...] = ()
    """In the order in which they were judged; a case that was not reached is absent or `undecided`."""
    first_failure: str | None = None
    """`suite:case` of the first case that neither passed nor was declined; None if there is none."""
    speedup: Estimate | None = None
    """Sum of weight x split chain's time over sum of weight x candidate's time, over the timed cases. None for every status but
    `passed`."""
    registers: int | None = None
    """Registers per thread, the most of any launch that was compiled; None without compiled code (torch kernels, no Triton)."""
    spills: int | None = None
    """Spilled bytes per thread, the most of any launch."""
    shared_bytes: int | None = None
    """Shared memory per block in bytes, the most of any launch."""
    remarks: tuple[str, ...] = ()
    """Advice and limits of this evaluation, one sentence each."""
    isolation: tuple[IsolationMeasure, ...] = ()
    output_tail: str = ""
    """End of what the candidate wrote to stdout and stderr; bounded."""
    spent_s: float = 0.0
    """Wall time of the evaluation in seconds."""
    phases_s: dict[str, float] = {}
    """Where it went: seconds by part of the judge's work, each without those inside it, the most first.  `judge.phases` names them."""
    start_s: dict[str, float] = {}
    """What the candidate's process did before it had a candidate, in seconds by step; it may have done so during the evaluation before."""
    kernels_compiled: int | None = None
    """Specialisations that Triton compiled in the judged process; None where it does not tell: on a CPU, and of other languages."""
    compile_s: dict[str, float] = {}
    """Seconds that they took by Triton's step."""
    next_command: str = ""
    """The command to run next."""
