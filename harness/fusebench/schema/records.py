"""The record of a run: environment, plan, summaries, results, calibration."""

from __future__ import annotations

from typing import Any

import msgspec

from .cases import Case
from .kernels import KernelInfo
from .results import CacheState, Estimate, Result

SCHEMA_VERSION = 3
"""Version of the run record's format (see docs/schema.md).  Version 2 may hold kernels that cover a part of their op (`Result.covers`); a
reader of version 1 would take them for whole ones.  Version 3 keeps cases, kernels and results in Parquet files beside `run.json`."""


COMPARABLE_VERSIONS = frozenset({1, 2, 3})
"""Versions whose figures mean the same: a run may be compared with a baseline of any of them."""


FLOOR_BELOW_US = 10.0
"""Calls below this time are bound by their launch and by latency, which a stream of their bytes shows no better than they do."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """A time below which no cold call of a case can come: `launch_us + latency_us + bytes / gb_per_s`.

    The constants are measured in the process that times the case, with its timer (`timing.floor`); of several processes, the median floor.
    """

    launch_us: float
    """Time of an empty launch."""
    latency_us: float
    """Additional time of a launch that loads one word that no cache holds, and stores it."""
    gb_per_s: float
    """Speed of a stream of several times the cache with the case's mix, without launch and latency, in 1e9 bytes per second."""
    time_us: float
    """The floor."""

    def limit_us(self, yardstick_us: float) -> float:
        """The limit of a case whose yardstick takes `yardstick_us`: a longer yardstick than `FLOOR_BELOW_US` is the limit itself."""
        return yardstick_us if yardstick_us >= FLOOR_BELOW_US else min(yardstick_us, self.time_us)


def limit_of(stream_shape: str, stream_us: Estimate | None, copy_us: Estimate | None, floor: Floor | None) -> float | None:
    """A case's limit in microseconds, from the fields of `CaseSummary` (see `CaseSummary.limit_us`)."""
    if stream_shape and stream_us is not None:
        return stream_us.value if floor is None else floor.limit_us(stream_us.value)
    return min((one.value for one in (copy_us, stream_us) if one is not None), default=None)


class CaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A case with what the run measured for the case itself."""

    case: Case
    shape: str
    minimum_bytes: int
    flops: int
    baseline: str | None
    """Id of the kernel that speedups are relative to."""
    bytes_written: int | None = None
    """The part of `minimum_bytes` that is written; the rest is read. None in older records."""
    copy_us: Estimate | None = None
    """The copy yardstick: the device's own copy of the op's minimum bytes, timed in the same rounds, in microseconds. It tells whether the
    streaming yardstick itself changed; it is a limit in records without `stream_shape` only."""
    stream_us: Estimate | None = None
    """The streaming yardstick: one launch that reads and writes as many bytes as the op, in place for an in-place op, timed in the same
    rounds, in microseconds. In records without `stream_shape`, an elementwise launch with as many reads as writes."""
    stream_shape: str = ""
    """How the streaming yardstick was launched. Yardsticks with different texts are never compared."""
    floor: Floor | None = None
    """The floor of a cold call; None for warm samples, on a CPU, and in older records."""
    control_ratio: Estimate | None = None
    """Time of the baseline over the time of its second copy: 1.0 within noise, or the rounds are biased."""
    board: str = ""
    """UUID of the board that measured the case, in a record of several boards; empty where it is the environment's."""
    seconds: float | None = None
    """Wall-clock seconds of the case's checks and first measurement: the next run's shards and leases are planned by it. None in older
    records."""
    same_as: str = ""
    """Key of the equal case (same op and parameters) that was measured instead; empty if this case was measured."""
    not_cold: str = ""
    """Evidence that this case's samples were not cold as labelled, or empty. Such times are never compared."""
    repeated_rounds: int = 0
    """Rounds timed again because the device waited for the host within a call."""
    dispatched: str = ""
    """Id of the kernel that `fusebench.dispatch` takes for this case on this device; empty on a CPU, and in older records."""
    suspicion: str = msgspec.field(name="in_doubt", default="")
    """Why this case was a suspect, or empty. Suspects, its baseline kernel and the yardsticks are remeasured in fresh processes, and their
    figures come from these alone: `Measurement.looks` is above 1."""

    @property
    def limit_us(self) -> float | None:
        """The time that the share of SOL is taken of: the streaming yardstick's, or the floor's where both are short and it is lower.

        Records without `stream_shape` take the faster of both yardsticks. None if no yardstick was timed.
        """
        return limit_of(self.stream_shape, self.stream_us, self.copy_us, self.floor)


class SuiteSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The weighted view of a suite, over its cases without a variant: sum(weight x baseline time) / sum(weight x kernel time).

    The dictionaries are by kernel name (without the op) and `best_fused`, which is the best fused kernel of each case.  Each figure
    covers the cases where both the kernel and the baseline were measured.
    """

    name: str
    cases: int
    weighted_speedup: dict[str, float]
    covered_cases: dict[str, int]
    """Number of cases that each of these figures covers, out of `cases`."""
    covered_weight: dict[str, float] = {}
    """Share of the suite's weight (launches per denoise step) that each figure covers."""
    baseline_us_per_step: dict[str, float] = {}
    """sum(weight x baseline time) over the covered cases: the time that a denoise step spends on them today."""
    saved_us_per_step: dict[str, float] = {}
    """sum(weight x (baseline time - kernel time)) over the covered cases; negative where the kernel is slower."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment fingerprint. Raw times are compared only between equal fingerprints."""

    device: str
    """`cpu` or `cuda`."""
    device_name: str
    device_uuid: str = ""
    """Empty for the CPU. Of a record of several boards, all of them with commas between; every case then names its own."""
    driver: str = ""
    cuda: str = ""
    python: str
    torch: str = ""
    triton: str = ""
    ptxas: str = ""
    """Version of Triton's assembler, on a GPU; empty if unknown, and in records that predate this key."""
    ptxas_blackwell: str = ""
    """Version of the assembler that Triton uses instead for newer GPUs (Triton's version says which); empty as `ptxas`."""
    platform: str
    memory_gb_per_s: float | None = None
    """Peak speed of a GPU's memory in 1e9 bytes per second: highest memory clock x bus width x 2, both from NVML. Not part of the
    fingerprint. None if unknown, on a CPU, and in older records."""
    cpu: str = ""
    cpu_count: int = 0
    cpu_process: str = ""
    """Threads and memory of every process that measured on a CPU, in words; empty on a GPU, and in records that predate this key."""
    fusebench: str
    git_commit: str = ""
    git_dirty: bool = False
    state: dict[str, Any] = {}
    """Clocks, temperature, power, throttle reasons before and after: context, not part of the fingerprint."""


class SamplingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a case is sampled."""

    replicates: int
    """Fresh placements of all buffers, in each process that measures a case."""
    rounds: int
    cache: CacheState
    trim: float
    """Share of samples cut from each end before the mean of a replicate."""
    precision: float | None = None
    """Wanted half-width of the 95 % interval of every fused kernel's speedup, as a share of the speedup. Cases are measured in further
    processes until they reach it; None means `processes`."""
    processes: int = 1
    """Processes that measure each case without a `precision`, the first of which also checks it."""


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's wall-clock time went, in seconds, the most first."""

    total_s: float
    phases_s: dict[str, float] = {}
    kernels_s: dict[str, float] = {}
    """Seconds per kernel for accuracy checks and first calls, which compile."""


class VisibleEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration of one class of kernel durations, for calls of one launch or calls of several."""

    low_us: float
    high_us: float
    """The class holds low <= time < high, in microseconds; infinite for the longest."""
    comparisons: int
    """A/A comparisons."""
    smallest: float | None
    """Smallest slowdown, as a share of the time, that was found with 95 % probability; None if no slowdown was."""
    largest_injected: float | None = msgspec.field(name="largest_planted", default=None)
    """Largest slowdown that was injected often enough. A missing `smallest` is larger than this; None if no slowdown was."""
    several_launches: bool = False
    """Whether its calls make several launches each; False in older records and for timers that see no launches."""


class CalibrationNote(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a device's stored calibration: how reliable verdicts are on it."""

    device_name: str
    created: str
    timer: str
    cache: CacheState
    comparisons: int
    """A/A comparisons."""
    false_regressions: int
    """Number of A/A comparisons that were called slower."""
    false_regression_high: float
    """Upper end of the exact 95 % interval of that rate."""
    effects: tuple[VisibleEffect, ...]
    """Effects for calls of one launch, then for calls of several; each by class of duration, shortest first."""


class JoinedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the runs that a baseline was joined from."""

    id: str
    created: str
    board: str
    """UUID of the device."""
    git_commit: str
    processes: int
    """Processes that measured each of its cases, at least."""


def boards_of(*device_uuids: str) -> tuple[str, ...]:
    """The boards that each `Environment.device_uuid` or `JoinedRun.board` names, each once; one without a UUID counts as a board."""
    return tuple(dict.fromkeys(board for one in device_uuids for board in one.split(",")))


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
    """Why the run used another timer than the device's default; empty for the default."""
    plan: SamplingPlan
    environment: Environment
    selected: tuple[str, ...] | None = None
    """Names of the selected suites (`nightly`, without the suites that it includes); None in older records."""
    selected_op: str | None = None
    """The selected op; None for all ops, and in older records."""
    selected_cases: str | None = None
    """Glob of the selected cases, by name or by `suite:case`; None for all, and in older records."""
    selected_kernels: str | None = None
    """Glob of the selected kernels, besides which baselines are measured; None for all."""
    shard: str = ""
    """`I/N` where this run measured the I-th of N parts of its selection; empty for all of it."""
    suites: list[SuiteSummary]
    cases: list[CaseSummary]
    kernels: list[KernelInfo]
    results: list[Result]
    spending: Spending | None = None
    resumed_from: list[str] = []
    """Ids of the stopped runs that this run resumed, oldest first; it contains their finished cases."""
    joined: tuple[JoinedRun, ...] = ()
    """The runs that this baseline was joined from, oldest first; empty for a run that was measured."""
    parts: tuple[JoinedRun, ...] = ()
    """The shards that this run was joined from, each with cases of its own; empty for a run that was measured as a whole."""
    calibration: CalibrationNote | None = None
    """Calibration of the run's device at the time of its verdicts; None for a device without calibration."""
    warnings: list[str] = []
    complete: bool = True
    exit_code: int = 0
