"""The result of one kernel on one case: accuracy, samples, measurement, verdict."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .kernels import Role


class VerdictKind(StrEnum):
    """The judgement on one kernel and case."""

    PASS = "pass"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    UNDECIDED = "undecided"
    INCOMPARABLE = "incomparable"
    ERROR = "error"


CHANGES = (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT)
"""Verdicts that claim a change.  What claims one needs proof: confirmation, a noise floor, FDR control."""


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
    """State of the L2 cache when a timed call starts."""

    COLD = "cold"
    WARM = "warm"


class OutputError(msgspec.Struct, frozen=True, kw_only=True):
    """RMS error of one output over all draws, in units that do not depend on where the draws put their outlier channels."""

    name: str
    unit: str
    """`channel`: each channel's own RMS.  `value`: each reference value, or its row's median where that is larger; for draws of so few rows
    that channels are not known."""
    rms: float
    split_rms: float
    """The split chain's, on the same inputs."""
    floor: float = 0.0
    """Errors up to here count as none: the units in the last place that the contract allows a float32 output; 0 for 16-bit outputs."""
    rounding: float | None = None
    """RMS error that rounding the exact result once would make, on the same inputs: no kernel can undercut it.  0 where the exact result
    needs no rounding, None in records that were made before it was measured."""


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
    """RMS error in units of each channel's own RMS, over all draws, of the output where the kernel compares worst with the split chain.  0
    where too few rows were drawn."""
    split_channel_rms_error: float = 0.0
    outputs: tuple[OutputError, ...] = ()
    """Every output by itself: what growth is judged on.  Empty in older records."""
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
    """0 for the process that measured first, from 1 on for the further ones of a run with a precision, and for the fresh ones that measured
    a case in doubt or a finding of `ab` again; each counts its own replicates."""


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
    """The p-value after FDR control over all gating comparisons of the run: the smallest false-discovery rate at which it is significant.
    None for an advisory verdict."""
    margin: float | None = None
    """Share of the old time that counted as no change."""
    gating: bool = msgspec.field(name="decides", default=True)
    """Whether it is gating.  Older records lack the key and read as True; `Result.gating` also looks at the role."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that a verdict brings with it: a table, and sentences about it.  Either may be empty."""

    kind: str
    """Its source: `static` compares the compiled code, `counters` the hardware counters of a call."""
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks, and the reason where there is no table."""


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
    """Of all processes together."""
    rounds: int
    processes: int = 1
    """Worker processes that it was measured in; where there are several, the intervals are over them."""


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
    """The part of the op that the kernel computes; empty for the whole op.  Accuracy and time are the part's, it has no speedup, no share
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
    def role_gates(self) -> bool:
        """Whether this role can be gating.  Peers cannot: they are measured for comparison, and another library maintains them."""
        return self.role is not Role.PEER

    @property
    def speed_gates(self) -> bool:
        """Whether its speed is gating.

        The speed of torch.compile's code is advisory: it tunes by timing, anew in every process, so its kernels become slower and faster
        without any change of the tree.  Its failures and losses of accuracy still gate.
        """
        return self.role_gates and self.role is not Role.COMPILED

    @property
    def gating(self) -> bool:
        """Whether its verdict, or its status where there is no verdict, can change the exit status."""
        return self.role_gates and (self.verdict is None or self.verdict.gating)
