"""The result of one kernel on one case: accuracy, samples, measurement, verdict."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .kernels import Role

LIMIT_NOISE = 1.05
"""Share of the limit from which a time is suspicious, its interval and the yardstick's granted: a kernel moves its minimum bytes no faster
than a stream does.  Of 878 times of a nightly on H200 boards the largest share was 1.037, of 225 us."""


class VerdictKind(StrEnum):
    """The judgement on one kernel and case."""

    PASS = "pass"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    UNDECIDED = "undecided"
    INCOMPARABLE = "incomparable"
    ERROR = "error"


CHANGES = (VerdictKind.REGRESSION, VerdictKind.IMPROVEMENT)
"""Verdicts that claim a change. Such a claim needs proof: confirmation, a noise floor, FDR control."""


class Status(StrEnum):
    """Outcome of one kernel on one case. Every kernel of the op is listed with one of these."""

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
    """Unit of the errors. `channel`: each channel's own RMS. `value`: each reference value, or its row's median if larger; for draws with
    too few rows to know the channels."""
    rms: float
    split_rms: float
    """RMS error of the split chain on the same inputs."""
    floor: float = 0.0
    """Errors up to this value count as zero: the units in the last place that the contract allows a float32 output; 0 for 16-bit
    outputs."""
    rounding: float | None = None
    """RMS error of rounding the exact result once, on the same inputs: the smallest error that any kernel can have. 0 for an exact result
    that needs no rounding, None in records that predate this key."""
    spread: float | None = None
    """Standard error of `rms` as a share of it, from how the draws of the check differ; None where no two draws have an error, and in
    records that predate this key."""
    ratio_spread: float | None = None
    """The same of `rms / split_rms`."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a kernel's outputs against the float64 reference: absolute, in the output's unit.

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
    """RMS error in units of each channel's own RMS, over all draws, of the output that compares worst with the split chain. 0 if too few
    rows were drawn."""
    split_channel_rms_error: float = 0.0
    outputs: tuple[OutputError, ...] = ()
    """Errors of each output. Growth of the error is tested on these. Empty in older records."""
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
    errors_only: bool = False
    """Whether it failed by the size of its errors alone, or by no more than what became of NaN and Inf that the check planted; false for a
    pass, for any other failure, and in older records."""
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
    """0 for the first process. From 1 on: further processes of a run with a precision, or fresh processes that remeasured a suspect. Each
    counts its own replicates."""


class Estimate(msgspec.Struct, frozen=True):
    """A point with its interval; `level` is the interval's nominal coverage."""

    value: float
    low: float
    high: float
    level: float = 0.95


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and the sentence that explains it. `change` is time over reference time: 1.02 is 2 % slower."""

    kind: VerdictKind
    reason: str
    change: Estimate | None = None
    p_value: float | None = None
    """P-value of "no slower than the margin", or of "not slower" where the interval is from the scatter between runs; None if no times were
    compared."""
    adjusted_p: float | None = None
    """The p-value after FDR control over all gating comparisons of the run: the smallest false-discovery rate at which it is significant.
    None for an advisory verdict."""
    margin: float | None = None
    """Share of the old time that counted as no change."""
    gating: bool = msgspec.field(name="decides", default=True)
    """Whether the verdict is gating. Older records lack the key and read as True; `Result.gating` also checks the role."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence attached to a verdict: a table, and sentences about it. Either may be empty."""

    kind: str
    """Its source: `static` compares the compiled code, `counters` the hardware counters of a call."""
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks, and the reason when there is no table."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Timing of one kernel on one case, summarised from its samples."""

    time_us: Estimate
    busy_us: float
    gap_us: float | None = None
    """Time within the span without any activity of the call; None if the timer cannot see activities."""
    kernels: int
    """Launches per call as the timer saw them."""
    host_us: float | None
    """Host time for one call to return, without device work; None if the timer is the host timer."""
    speedup: Estimate | None
    """Baseline time over this kernel's; None for the baseline itself, and for a kernel that covers a part of the op."""
    sol: float | None
    """Share of the speed of light: the case's limit (`CaseSummary.limit_us`) over this kernel's time; None for a kernel that covers a part
    of the op."""
    gb_per_s: float
    """Minimum bytes over time, in 1e9 bytes per second."""
    peak_share: float | None = None
    """`gb_per_s` over the memory's peak (`Environment.memory_gb_per_s`); None where that is unknown, and in older records."""
    extra_memory_bytes: int | None
    """Peak device memory that the call allocates beyond its inputs, in bytes; None if not measured."""
    replicates: int
    """Of all processes together."""
    rounds: int
    processes: int = 1
    """Number of worker processes that measured it. With several, the intervals are over processes."""
    placement_error: float | None = None
    """Standard error of the time's logarithm with every placement of all its processes as one unit. None for one process, whose interval
    says it, for joined times, and in older records."""
    looks: int = 1
    """Looks at which the time could have passed a gate: above 1 where fresh processes remeasured the kernel because it was a suspect."""
    runs: tuple[int, ...] = ()
    """Places in `Run.joined` of the runs whose times were joined into this one; empty for the time of one run."""
    boards: tuple[str, ...] = ()
    """The board of each of these runs that measured the case, by UUID; empty where every run of the baseline is of one board, and in older
    records."""


OUTSIDE_CONTRACT = "outside the contract"
"""Begins `Result.covers` of a peer whose errors are larger than its contract allows, and small enough to be meant."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one kernel on one case."""

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
    """The part of the op that the kernel computes; empty for the whole op. Accuracy and time are the part's. Such a result has no speedup
    and no share of the speed of light, its only verdict is failure, and sums leave it out.  So has a peer outside the contract, whose
    entry begins with `OUTSIDE_CONTRACT` and names the error."""
    code: str | None = None
    """Digest of the machine code that the kernel launched on this case. Equal digests mean equal code on one device model. None if unknown:
    a torch.compile or peer kernel, a CPU, a record that predates this key."""
    attachments: tuple[Attachment, ...] = ()
    """Evidence about a regression; empty without evidence, and in older records."""
    suspicious: str = ""
    """Evidence that its time is not that of its work: work outside the timed calls, a claim that contradicts wall time or the limit. Empty
    without such evidence, and in older records. Such a time is never compared, and is no speedup."""

    @property
    def case_key(self) -> str:
        return f"{self.suite}:{self.case}"

    @property
    def outside_contract(self) -> bool:
        """Whether it is a peer that computes the op with larger errors than the contract allows, timed for information."""
        return self.covers.startswith(OUTSIDE_CONTRACT)

    @property
    def role_gates(self) -> bool:
        """Whether this role can be gating.  Peers cannot: they are measured for comparison, and another library maintains them."""
        return self.role is not Role.PEER

    @property
    def speed_gates(self) -> bool:
        """Whether its speed is gating.

        The speed of torch.compile's code is advisory: every process tunes it anew by timing, so its kernels change speed without any change
        of the source. Its failures and losses of accuracy still gate.
        """
        return self.role_gates and self.role is not Role.COMPILED

    @property
    def gating(self) -> bool:
        """Whether its verdict, or its status if there is no verdict, can change the exit status."""
        return self.role_gates and (self.verdict is None or self.verdict.gating)
