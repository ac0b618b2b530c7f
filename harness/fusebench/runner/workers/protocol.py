"""What the runner and its worker processes say to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...schema import Accuracy, Case, Sample, SamplingPlan, Status
from ...stats.sequential import Plan
from ...timing.coldness import Coldness
from ...timing.pairs import Compared, Pair

BASE = "base:"
"""Precedes the id of a kernel of `WorkerSetup.base_roots`, in tasks and as the name of its arm."""


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know once."""

    roots: tuple[Path, ...]
    base_roots: tuple[Path, ...] = ()
    """Kernels folders of the other side of a comparison, loaded beside the first under names of their own."""
    ops: frozenset[str] | None = None
    """Ops whose kernels are loaded; None for all.  What a worker never calls, it need not import, nor torch.compile for it."""
    device: str
    """Torch's name of the device: `cpu` or `cuda:N`."""
    gpu_uuid: str = ""
    interpret: bool = False
    """Whether Triton kernels run in the interpreter in this process."""
    threads: int | None = None
    """Threads that torch may compute with on the CPU; None leaves it to torch."""
    timer: str = ""
    """Timer that it will be asked to measure with, made ready while it starts; empty where it may only check."""


class CheckTask(msgspec.Struct, frozen=True, kw_only=True):
    """Run the accuracy gate for one kernel on one case."""

    case: Case
    kernel: str
    """Its id, after `BASE` where it is the other side's, which is held to this side's reference and split chain."""
    seed: int | None = None
    rows: int | None = None


class ExtraArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm beyond the one of every kernel."""

    name: str
    kernel: str
    """Its id, after `BASE` where it is the other side's."""
    params: dict[str, Any] | None = None
    """Parameters of this arm alone; the case's where None."""


class MeasureTask(msgspec.Struct, frozen=True, kw_only=True):
    """Time kernels that have passed the gate against one another."""

    case: Case
    kernels: tuple[str, ...]
    baseline: str
    plan: SamplingPlan
    timer: str
    seed: int
    seconds: float | None = None
    """Time left for this case; None for no limit."""
    extra_arms: tuple[ExtraArm, ...] = ()
    extra_alone: bool = False
    """Whether these are all arms: no yardsticks, no baseline, no control."""
    pairs: tuple[Pair, ...] = ()
    looks: Plan | None = None
    """When and how to judge the pairs; None measures the plan's replicates and judges nothing."""
    lengths: dict[str, int] | None = None
    """Without looks: replicates of each pair by its name, instead of the plan's."""
    digested: tuple[str, ...] = ()
    """Names of the arms that are called once more, before the warm-up, to hear what machine code they launch."""
    skip_identical: bool = False
    """Whether pairs of the same machine code, other than those of `sampled`, are left untimed."""
    sampled: tuple[str, ...] = ()
    """Names of pairs that are timed even so."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life, and what is being done; `kernel` is the kernel or arm that it concerns."""

    text: str
    done: int = 0
    total: int = 0
    kernel: str = ""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    accuracy: Accuracy


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of one case, by arm name (kernel ids, and the yardsticks and control of `timing.placement`)."""

    samples: list[Sample]
    host_us: dict[str, float]
    extra_memory_bytes: dict[str, int]
    timer: str
    timer_fallback: str
    warm_up: dict[str, Any]
    seconds: float
    cut_short: bool
    timer_retries: int
    repeated_rounds: int = 0
    """Rounds that were timed again since the host came late inside of a call."""
    late_calls: dict[str, int] = {}
    """By arm, the samples of calls that waited for the host all the same."""
    minimum_bytes: dict[str, int] = {}
    """By arm, the bytes that any implementation of its work must move."""
    coldness: Coldness | None = None
    phases_s: dict[str, float] = {}
    """Where `seconds` went, by phase of `timing.measure`."""
    first_call_s: dict[str, float] = {}
    """What the first call of each arm took, compilation included."""
    compared: dict[str, Compared] = {}
    """By name, the pairs that were judged."""
    code: dict[str, str] = {}
    """By name of a digested arm, the digest of the machine code that it launches; without those of which it is not known."""
    same_code: dict[str, bool | None] = {}
    """By name of a pair of digested arms, whether both launch the same machine code; None where that is not known."""

    def numbered(self, process: int) -> Measured:
        """The same, its samples naming that process."""
        return msgspec.structs.replace(self, samples=[msgspec.structs.replace(sample, process=process) for sample in self.samples])


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task gave no result.  `kernel` is empty where no kernel is to blame."""

    status: Status
    reason: str
    kernel: str = ""
    unfit: bool = False
    """Whether the device or its timer, not a kernel, is at fault (exit code 3)."""


Task = CheckTask | MeasureTask
Reply = Checked | Measured | Failure
