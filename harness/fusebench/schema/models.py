"""The record of a model's denoise step: variants, their times, where the time goes, the calls of ops, and drift."""

from __future__ import annotations

from typing import Any

import msgspec

from .results import Estimate, Verdict

MODEL_VERSION = 1
"""Version of the record; a newer one is refused."""


class SiteCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one op at one site in one denoise step."""

    site: str
    op: str
    kernel: str
    """The kernel that ran, or the first of several."""

    calls: int
    params: dict[str, Any]
    """The op's parameters of these calls."""
    shape: str = ""
    minimum_bytes: int = 0
    """Bytes that one call must read and write."""

    fallbacks: int = 0
    """Calls for which no kernel of the preferred role ran."""
    reason: str = ""
    """Why, of the first such call."""
    place: str = ""
    """Module of the first call, or of the first fallback."""


class GpuTime(msgspec.Struct, frozen=True, kw_only=True):
    """One variant's denoise step by CUPTI's activity records, in rounds of its own."""

    rounds_ms: tuple[float, ...]
    """Milliseconds in which at least one activity ran, one per round: the mean of the round's two steps in ABBA order."""
    busy_ms: Estimate
    """Geometric mean over rounds."""
    span_ms: float
    """Mean from the first activity's start to the last one's end."""
    speedup: Estimate | None = None
    """Busy time of `split` over this variant's, paired by round."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """One variant's denoise step."""

    variant: str
    rounds_ms: tuple[float, ...] = ()
    """Milliseconds of wall clock of a step, one per round: the mean of the round's two steps in ABBA order."""

    time_ms: Estimate | None = None
    """Geometric mean over rounds; its interval covers this process and its clocks alone."""

    speedup: Estimate | None = None
    """Time of `split` over this variant's, paired by round."""

    peak_bytes: int = 0
    """Most memory that the device held during a step of this variant, weights of all variants included."""

    sm_mhz: float = 0.0
    """Mean clock of the multiprocessors during the rounds' steps of this variant, in older records at their ends; 0 where it
    cannot be read."""

    gpu: GpuTime | None = None
    """By activity records of the GPU; None where there are none, and the record's `gpu_times_absent` says why."""

    error: str = ""
    """Why the variant did not run; empty where it did."""


class LoopTime(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's whole loop with one variant."""

    variant: str
    steps: int
    rounds_ms: tuple[float, ...]
    """Milliseconds of wall clock of a loop, one per round: the mean of the round's two loops in ABBA order."""
    time_ms: Estimate
    steps_ms: float
    """As many steps as the loop has, by the time of one: the loop takes longer by the scheduler's own work."""
    speedup: Estimate | None = None
    """Time of the loop of `split` over this one's, paired by round."""


class WholeStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the whole model with one variant, told from a reduced stack."""

    variant: str
    block_ms: dict[str, float] = {}
    """Milliseconds of one block, by the stack that is cut."""
    rounds_ms: tuple[float, ...] = ()
    """The whole's step by the time of its blocks, one per round."""
    time_ms: Estimate | None = None
    """Geometric mean over rounds; None where it cannot be told."""
    measured_ms: float | None = None
    """One real step of the whole, by wall clock; None where it did not run."""


class WholeStack(msgspec.Struct, frozen=True, kw_only=True):
    """What a reduced stack says of the whole model, and how that was checked."""

    sizes: dict[str, int]
    """Blocks of the smaller stacks that were timed too."""
    steps: tuple[WholeStep, ...]
    speedup: Estimate | None = None
    """Extrapolated step of `split` over that of `fused`, paired by round."""
    checked: str = ""
    """What was checked against the whole, or why nothing was, in words."""


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one stage of a profiled step."""

    stage: str
    time_us: float
    launches: int
    attention_us: float | None = None
    """The part of it inside attention modules; None where modules are not marked (compiled, in a graph), and in older records."""


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one device kernel, or operator on a CPU, in a profiled step."""

    name: str
    stage: str
    time_us: float
    launches: int


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """One profiled step of one variant."""

    variant: str
    span_us: float
    """From the first activity's start to the last one's end."""
    busy_us: float
    """Time in which at least one activity ran."""
    stages: tuple[StageTime, ...]
    kernels: tuple[KernelTime, ...] = ()
    """The largest, by time."""

    @property
    def idle_us(self) -> float:
        """Time between activities: the device waited for the host, or for a launch."""
        return self.span_us - self.busy_us


class DriftStep(msgspec.Struct, frozen=True, kw_only=True):
    """Distance of two trajectories after one denoise step."""

    step: int
    rms: float
    """Root mean square of the difference of latents, relative to that of the latents."""
    largest: float
    """Largest difference of a latent, in units of the latents' root mean square."""
    psnr_db: float
    """Peak signal-to-noise ratio; the peak is the range of the reference's latents."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Trajectories from the same noise, against that of `split`."""

    variant: str
    steps: tuple[DriftStep, ...]
    equivalent: tuple[DriftStep, ...]
    """The same model with the same formulas, accumulated in another order."""
    equivalent_by: str
    """What changed the order."""
    limit: float
    """Most times the equivalent's relative RMS difference that the contract allows."""
    verdict: Verdict


class OpSaving(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite predicts for one op, and what the profiled steps show."""

    op: str
    predicted_us: float | None
    """Sum over its calls of the torch chain's time less the kernel's; None where no stored run has such cases."""
    tuned_us: float | None = None
    """The same against the suite's tuned split chain, which the suite's speedups are relative to."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the difference between the predicted and the measured saving."""

    cause: str
    time_us: float
    """Positive: saves more than predicted."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The saving predicted from the suite, the measured one, and what stands between."""

    predicted_us: float | None
    chains_us: float | None = None
    """Sum of the ops' own predictions, where `predicted_us` rests on the launches of diffusers instead; None where it is that sum."""
    reckoned_us: float | None = None
    """`predicted_us` less what products and attention lose to lower clocks, by the same launches of attention; None without these."""
    clocked_us: float | None = None
    """The same by the mean clocks that were read during the timed steps; None where none were read."""
    tuned_us: float | None = None
    """The same against the suite's tuned split chains."""
    measured_us: float
    stored: str
    """The record that the prediction rests on."""
    ops: tuple[OpSaving, ...] = ()
    unpredicted_calls: int = 0
    """Calls of ops in one step that the stored run does not predict; 0 in older records, whose remarks name their sites."""
    causes: tuple[Cause, ...] = ()
    """They, the prediction and `unexplained_us` add up to the measured saving."""
    unexplained_us: float | None = None
    """What no cause accounts for; None in older records, whose causes hold it."""
    remarks: tuple[str, ...] = ()


class EagerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What eager torch launches beside matrix products and attention in one step, in microseconds by place (`inside` attention modules,
    `outside`), reckoned from a stored run's torch chains."""

    layers: dict[str, int]
    moved_bytes: dict[str, int]
    """Bytes that the calls of each site must read and write, of the substitution that was traced."""
    split_us: dict[str, float]
    """Of the model as diffusers runs it."""
    left_us: dict[str, float]
    """Of the substituted model, without its calls of ops."""
    products_left_out: float
    """Share of the split step's matrix products that the fused step does not make, by operations at the peak rates of their dtypes."""


class EagerFile(msgspec.Struct, frozen=True, kw_only=True):
    """Eager times of the models of a results folder."""

    stored: str
    """Id of the stored run whose chains gave the costs."""
    costs_us: dict[str, float]
    """Of a unit of each kind of launch."""
    scatter: float
    """Root mean square of the chains' relative errors."""
    models: dict[str, EagerTimes]


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """Speedups of a fresh process, by variant."""

    speedups: dict[str, Estimate]


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One `fusebench model`."""

    version: int
    id: str
    created: str
    command: str
    environment: dict[str, Any]
    model: str
    title: str
    tiny: bool
    layers: dict[str, int]
    """Blocks of every stack that ran."""
    full_layers: dict[str, int]
    """Blocks of every stack of the published model."""
    shapes: dict[str, int | tuple[int, int] | None]
    """Pixels, frames and text tokens; `reference` is the height and width of an image that is edited, or None."""
    dtype: str
    weights: str
    """`random`, or the name of the folder that they were loaded from."""
    parameters: int
    """Number of weights of the transformer that ran."""
    diffusers: str
    calls: tuple[SiteCalls, ...] = ()
    findings: tuple[str, ...] = ()
    """What is wrong with the substitution; empty where every op is called as often as the suite says, by the preferred kernels."""
    times: tuple[StepTime, ...] = ()
    gpu_times_absent: str = ""
    """Why variants have no time by CUPTI; empty where all have one, and in records of an older fusebench, which did not measure it."""
    loops: tuple[LoopTime, ...] = ()
    """The denoise loop of `split` and of the fastest variant with fused ops."""
    whole: WholeStack | None = None
    """The whole model's step, where a stack was cut."""
    confirmation: Confirmation | None = None
    breakdowns: tuple[Breakdown, ...] = ()
    explanation: Explanation | None = None
    drift: Drift | None = None
    verdicts: dict[str, Verdict] = {}
    """Of each variant against `split` by its name, `fused_compiled against compiled` (also in CUDA graphs), and `denoise loop`."""
    acceptance: dict[str, bool] = {}
    """SGLang's rule by variant: a mean gain of 1.5 % or more in ABBA order on one GPU."""
    clocks: dict[str, Any] = {}
    """The device's clocks, power and temperature during the rounds."""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """Parts of the measurement that failed, with their errors; the rest stands."""
    exit_code: int = 0
    complete: bool = True
    """False when the measurement was stopped early, or one of its processes died."""
    missing: tuple[str, ...] = ()
    """Parts that were not measured because of that, in words; empty in a complete record."""
