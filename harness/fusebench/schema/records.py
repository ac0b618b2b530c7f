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
"""Versions whose figures mean the same: a run may be judged by a baseline of any of them."""


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
    """Key of the equal case (same op and parameters) that was measured instead; empty where this case was measured."""
    not_cold: str = ""
    """Evidence that this case's samples were not cold as labelled; empty where there is none.  Such times are never compared."""
    repeated_rounds: int = 0
    """Rounds timed again because the device waited for the host within a call."""
    in_doubt: str = ""
    """What was in doubt of this case after its first process, so that it was measured again in fresh ones: its figures are those of the
    fresh processes alone, and samples of process 0 do not count.  Empty where nothing was."""


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
    """The environment fingerprint: it decides whether raw times may be compared."""

    device: str
    """`cpu` or `cuda`."""
    device_name: str
    device_uuid: str = ""
    driver: str = ""
    cuda: str = ""
    python: str
    torch: str = ""
    triton: str = ""
    ptxas: str = ""
    """Version of Triton's assembler, on a GPU; empty where it could not be told, and in records from before it was kept."""
    ptxas_blackwell: str = ""
    """Version of the assembler that Triton takes in its place for newer GPUs, which ones depends on Triton's version; as `ptxas`."""
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
    """Fresh placements of all buffers, in each process that measures a case."""
    rounds: int
    cache: CacheState
    trim: float
    """Share of samples cut from each end before the mean of a replicate."""
    precision: float | None = None
    """Half of the 95 % interval of every fused kernel's speedup, as a share of it, for which cases are measured in further processes; None
    measures in one."""


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
    """The class holds low <= time < high; infinite for the longest."""
    comparisons: int
    """A/A comparisons."""
    smallest: float | None
    """Smallest slowdown, as a share of the time, that was found with 95 % probability; None where none was."""
    largest_planted: float | None = None
    """The largest slowdown that was injected often enough, which a missing `smallest` exceeds; None where none was."""
    several_launches: bool = False
    """Whether its calls make several launches each; older records, and timers that see no launches, tell none apart."""


class CalibrationNote(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a device's stored calibration: how reliable verdicts are on it."""

    device_name: str
    created: str
    timer: str
    cache: CacheState
    comparisons: int
    """A/A comparisons."""
    false_regressions: int
    """How many of them were called slower."""
    false_regression_high: float
    """Upper end of the exact 95 % interval of that rate."""
    effects: tuple[VisibleEffect, ...]
    """Of calls of one launch, then of calls of several; each by class of duration, shortest first."""


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
    selected_op: str | None = None
    """The op whose cases alone were asked for; None for all, and in older records."""
    selected_cases: str | None = None
    """Glob of the cases that were asked for, by name or by `suite:case`; None for all, and in older records."""
    selected_kernels: str | None = None
    """Glob of the kernels that were asked for, beside which baselines are measured; None for all."""
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
