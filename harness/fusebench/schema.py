"""The value types that every layer passes on: frozen, typed, serialisable.

This module owns the words of the project (case, kernel, contract, sample, result, run, verdict) and nothing else: no I/O,
no torch, no policy.  Times are nanoseconds in raw samples (`_ns`) and microseconds in results (`_us`); sizes are bytes.

`run.json` is `msgspec.json.encode(Run)`.  `SCHEMA_VERSION` is raised whenever a reader of the previous version could
misread the new one; a reader refuses a newer version and names both numbers.
"""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from typing import Any

import msgspec

SCHEMA_VERSION = 2
"""Version of the run record's format (see docs/schema.md).  Version 2 may hold kernels that cover a part of their op (`Result.covers`),
which a reader of version 1 would take for whole ones."""

COMPARABLE_VERSIONS = frozenset({1, 2})
"""Versions whose figures mean the same, so that a run may be judged by a baseline of another one of them."""


class ExitCode(IntEnum):
    """What the process tells its caller.  When several apply, the first of `EXIT_PRECEDENCE` wins."""

    PASS = 0
    REGRESSION = 1
    USAGE = 2
    DEVICE_UNFIT = 3
    UNDECIDED = 4
    KERNEL_FAILED = 5


EXIT_PRECEDENCE = (
    ExitCode.USAGE,
    ExitCode.DEVICE_UNFIT,
    ExitCode.KERNEL_FAILED,
    ExitCode.REGRESSION,
    ExitCode.UNDECIDED,
    ExitCode.PASS,
)


def worst_exit_code(codes: list[ExitCode]) -> ExitCode:
    """The code that a caller must see when several apply; PASS for an empty list."""
    return next((code for code in EXIT_PRECEDENCE if code in codes), ExitCode.PASS)


class Role(StrEnum):
    """What a kernel is in a comparison."""

    SPLIT = "split"
    """The chain of separate launches that models run today."""
    FUSED = "fused"
    """One launch."""
    COMPILED = "compiled"
    """torch.compile of the split chain: what a user gets for free."""
    PEER = "peer"
    """Another library's kernel, used when it is installed."""


class Language(StrEnum):
    """What a kernel is written in; it decides where the kernel can run."""

    TORCH = "torch"
    TRITON = "triton"
    CUDA = "cuda"


class VerdictKind(StrEnum):
    """The judgement on one kernel and case."""

    PASS = "pass"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    UNDECIDED = "undecided"
    INCOMPARABLE = "incomparable"
    ERROR = "error"


class Status(StrEnum):
    """How far one kernel came on one case.  Every kernel of the op is listed with one of these: none is dropped."""

    MEASURED = "measured"
    """Checked and timed."""
    CHECKED = "checked"
    """Passed the accuracy gate; not timed (`check`, or a kernel that runs here only in an interpreter)."""
    UNSUPPORTED = "unsupported"
    """The kernel declines the case, with a reason."""
    NOT_RUNNABLE = "not_runnable"
    """The device or an absent library rules the kernel out, with a reason."""
    NOT_MEASURED = "not_measured"
    """The budget ended first."""
    WRONG = "wrong"
    """Failed the accuracy gate: never timed."""
    COMPILE_ERROR = "compile_error"
    CRASHED = "crashed"
    """Raised, or took its process down."""
    HUNG = "hung"
    """Did not return within the time allowed."""
    OUT_OF_MEMORY = "out_of_memory"


FAILED_STATUSES = frozenset({Status.WRONG, Status.COMPILE_ERROR, Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY})
"""Statuses that mean exit code 5."""


class CacheState(StrEnum):
    """What the L2 holds when a timed call starts."""

    COLD = "cold"
    WARM = "warm"


_KERNEL_ID = re.compile(r"(?P<op>[a-z0-9_]+)/(?P<name>[a-z0-9_]+)@(?P<version>[1-9][0-9]*)")


class KernelId(msgspec.Struct, frozen=True, order=True):
    """One implementation of an op: printed and parsed as `op/name@version`."""

    op: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.op}/{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: str) -> KernelId:
        """Read `op/name@version`; ValueError says what was found and what is expected."""
        match = _KERNEL_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a kernel id; expected op/name@version, for example qknorm_rope/fused_triton@2")
        return cls(match["op"], match["name"], int(match["version"]))


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Error against float64 no worse than `factor` x the split chain's own."""

    factor: float = 1.5

    def __str__(self) -> str:
        return f"close({self.factor:g}x split)"


class Bitwise(msgspec.Struct, frozen=True, tag="bitwise"):
    """Equal, element for element, to the kernel `to` (an `op/name@version` string)."""

    to: str

    def __str__(self) -> str:
        return f"bitwise({self.to})"


Contract = Close | Bitwise


class KernelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kernel without running it."""

    id: str
    op: str
    name: str
    version: int
    role: Role
    language: Language
    contract: str
    note: str = ""
    file: str = ""
    covers: str = ""
    """What it computes where that is less than the op; empty for the whole op."""
    requires: tuple[str, ...] = ()
    """Python modules without which it is not runnable."""
    install: str = ""
    """What `pip install` provides those modules from; empty where the declaration does not say."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One named shape of one op, as a suite file gives it.

    `params` are the op's own keys, already validated against its Params type.  `weight` is the number of launches per
    denoise step.  A case with a `variant` (`tp2`: tensor parallelism over two GPUs) replaces other cases of its suite in a step
    that is run differently: it is measured and shown, and left out of the suite's sums.
    """

    suite: str
    name: str
    op: str
    params: dict[str, Any]
    weight: float = 1.0
    source: str = ""
    variant: str = ""

    @property
    def key(self) -> str:
        """`suite:name`, unique within a run."""
        return f"{self.suite}:{self.name}"


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed suite file, with the cases of the suites that it includes."""

    name: str
    description: str
    path: str
    cases: tuple[Case, ...]
    """Its own, then those of each included suite, which keep that suite's name."""
    included: dict[str, str] = {}
    """Name and path of every included suite, directly or through another."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How a kernel's outputs compare with the float64 reference; errors are absolute, in the output's unit.

    The `split_*` figures are the split chain's own errors on the same inputs, which the `close` contract is relative to.
    Figures are those of the worst output and the worst input draw; `seed` reproduces the draws.
    """

    passed: bool
    contract: str
    rms_error: float
    max_error: float
    mean_error: float
    split_rms_error: float
    split_max_error: float
    channel_rms_error: float = 0.0
    """RMS error in units of each channel's own RMS, over all draws: what growth is judged on, since it does not depend on where the
    draws put their outlier channels.  0 where too few rows were drawn."""
    split_channel_rms_error: float = 0.0
    equal_to_split: float
    """Share of output elements equal bit for bit to the split chain's."""
    within_loose_tolerance: bool
    """Whether the fixed 5e-2 tolerance common elsewhere would have passed: shown, never used as the gate."""
    draws: int
    elements: int
    seed: int
    tokens: int | None = None
    """Token count of the check where it differs from the case's (interpreter)."""
    interpreted: bool = False
    reason: str = ""


class Sample(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One timed call of one arm."""

    case: str
    arm: str
    replicate: int
    round: int
    position: int
    """Place of the arm within its round, from 0."""
    span_ns: int
    """First kernel's start to last kernel's end."""
    busy_ns: int
    """Union of the kernels' intervals."""
    kernels: int
    process: int = 0
    """0 for the process that measured first, from 1 on for the fresh ones that measured a finding of `ab` again; each counts its own
    replicates."""


class Estimate(msgspec.Struct, frozen=True):
    """A point with its interval; `level` is the interval's nominal coverage."""

    value: float
    low: float
    high: float
    level: float = 0.95


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A judgement and the sentence that explains it.  `change` is new over old, 1.02 being 2 % slower."""

    kind: VerdictKind
    reason: str
    change: Estimate | None = None
    p_value: float | None = None
    """P-value of "no slower than the margin"; None where no times were compared."""
    adjusted_p: float | None = None
    """The same after all comparisons of the run are taken into account: the smallest false-discovery rate at which it would stand."""
    margin: float | None = None
    """Share of the old time that counted as no change."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that a verdict brings with it: a table, and sentences about it.  Either may be empty."""

    kind: str
    """What gathered it: `static` compares what the kernel is compiled to, `counters` what the GPU counted of a call."""
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    """What the table cannot say, and why there is none."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Timing of one kernel on one case, summarised from its samples."""

    time_us: Estimate
    busy_us: float
    gap_us: float | None = None
    """Time within the span in which no activity of the call ran; None where the timer cannot see activities."""
    kernels: int
    """Launches per call as the timer saw them."""
    host_us: float | None
    """Host time for one call to return, device work excluded; None where the host timer is the timer."""
    speedup: Estimate | None
    """Baseline time over this kernel's; None for the baseline itself, and for a kernel that covers a part of the op."""
    sol: float | None
    """Share of the speed of light: the faster yardstick's time (`copy_us` or `stream_us`) over this kernel's; None for a kernel that
    covers a part of the op."""
    gb_per_s: float
    """Minimum bytes over time, in 1e9 bytes per second."""
    extra_memory_bytes: int | None
    """Peak device memory that the call allocates beyond its inputs; None where it is not measured."""
    replicates: int
    rounds: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run knows of one kernel on one case."""

    case: str
    suite: str
    op: str
    kernel: str
    role: Role
    status: Status
    shape: str
    reason: str = ""
    accuracy: Accuracy | None = None
    measurement: Measurement | None = None
    verdict: Verdict | None = None
    covers: str = ""
    """What the kernel computes where that is less than the op.  Its accuracy and its time are then the part's, it has no speedup, no share
    of the speed of light and no verdict but of failure, and it is in no sum."""
    code: str | None = None
    """Digest of the machine code that the kernel launched on this case; equal ones are equal code on one model of device.  None where it
    is not known: a torch.compile or peer kernel, a CPU, a record from before it was kept."""
    attachments: tuple[Attachment, ...] = ()
    """Evidence about a regression; empty where there is none, and in older records."""

    @property
    def case_key(self) -> str:
        return f"{self.suite}:{self.case}"

    @property
    def decides(self) -> bool:
        """Whether this result has a say in the exit code: a peer is measured to compare with, and is another library's to mend."""
        return self.role is not Role.PEER


class CaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A case with what the run measured for the case itself."""

    case: Case
    shape: str
    minimum_bytes: int
    flops: int
    baseline: str | None
    """Id of the kernel that speedups are relative to."""
    copy_us: Estimate | None = None
    """The device's own copy of the op's minimum bytes, in the same rounds."""
    stream_us: Estimate | None = None
    """One elementwise launch that reads and writes as many bytes, in place where the op works in place."""
    control_ratio: Estimate | None = None
    """Baseline time over its own second copy's: 1.0 within noise, or the rounds are biased."""
    same_as: str = ""
    """Key of the case of the same op and parameters that was measured in this one's place; empty where this one was."""
    not_cold: str = ""
    """What contradicts the label `cold` of this case's samples; empty where nothing does.  Its times are then compared with none."""


class SuiteSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The weighted view of a suite, over its cases without a variant: sum(weight x baseline time) / sum(weight x kernel time).

    The dictionaries are by kernel name (without the op) and `best_fused`, which is the best fused kernel of each case.  Each figure
    covers the cases where both the kernel and the baseline were measured.
    """

    name: str
    cases: int
    weighted_speedup: dict[str, float]
    covered_cases: dict[str, int]
    """Cases that each of those figures covers, of `cases`."""
    covered_weight: dict[str, float] = {}
    """Share of the suite's weight, which is of its launches per denoise step, that each figure covers."""
    baseline_us_per_step: dict[str, float] = {}
    """sum(weight x baseline time) over the covered cases: what a denoise step spends on them today."""
    saved_us_per_step: dict[str, float] = {}
    """sum(weight x (baseline time - kernel time)) over the covered cases; negative where the kernel is slower."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What a result depends on besides the code: the fingerprint that decides whether raw times may be compared."""

    device: str
    """`cpu` or `cuda`."""
    device_name: str
    device_uuid: str = ""
    driver: str = ""
    cuda: str = ""
    python: str
    torch: str = ""
    triton: str = ""
    platform: str
    cpu: str = ""
    cpu_count: int = 0
    fusebench: str
    git_commit: str = ""
    git_dirty: bool = False
    state: dict[str, Any] = {}
    """Clocks, temperature, power, throttle reasons before and after: context, not part of the fingerprint."""


class SamplingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a case is sampled."""

    replicates: int
    rounds: int
    cache: CacheState
    trim: float
    """Share of samples cut from each end before the mean of a replicate."""


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's wall-clock time went, in seconds, the most first."""

    total_s: float
    phases_s: dict[str, float] = {}
    kernels_s: dict[str, float] = {}
    """What single kernels took of the accuracy checks and of the first calls, which compile."""


class VisibleEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What a calibration found of one class of kernel durations."""

    low_us: float
    high_us: float
    """The class holds low <= time < high; infinite for the longest."""
    comparisons: int
    """Comparisons of equal kernels."""
    smallest: float | None
    """Smallest slowdown, as a share of the time, that was found with 95 % probability; None where none was."""
    largest_planted: float | None = None
    """The largest slowdown that was planted often enough, which is what a missing `smallest` exceeds; None where none was."""


class CalibrationNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the stored calibration of a device says of the verdicts made on it."""

    device_name: str
    created: str
    timer: str
    cache: CacheState
    comparisons: int
    """Comparisons of equal kernels."""
    false_regressions: int
    """How many of them were called slower."""
    false_regression_high: float
    """Upper end of the exact 95 % interval of that rate."""
    effects: tuple[VisibleEffect, ...]
    """By class of duration, shortest first."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable record: environment, cases, results.  Raw samples lie beside it in `samples.parquet`."""

    schema_version: int
    id: str
    created: str
    """UTC, ISO 8601."""
    command: str
    timer: str
    """Name of the timer; results of different timers are never compared."""
    timer_fallback: str = ""
    """Why a timer other than the device's default was used; empty when it was not."""
    plan: SamplingPlan
    environment: Environment
    selected: tuple[str, ...] | None = None
    """Names of the suites that were asked for (`nightly`, not what it includes); None in older records."""
    suites: list[SuiteSummary]
    cases: list[CaseSummary]
    kernels: list[KernelInfo]
    results: list[Result]
    spending: Spending | None = None
    resumed_from: list[str] = []
    """Ids of the stopped runs that this one went on with, the first one first; their finished cases are part of it."""
    calibration: CalibrationNote | None = None
    """Of the device that the run was made on, at the time when it was judged; None where it was not calibrated."""
    warnings: list[str] = []
    complete: bool = True
    exit_code: int = 0
