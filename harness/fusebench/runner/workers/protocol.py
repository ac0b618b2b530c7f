"""The messages between the runner and its worker processes: one task type per question, one reply type per answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...schema import Accuracy, Case, Floor, Sample, SamplingPlan, Status
from ...stats.sequential import Plan
from ...timing.case_timings import CaseTimings
from ...timing.coldness import Coldness
from ...timing.pairs import Compared, Pair

BASE = "base:"
"""Precedes the id of a kernel of the base revision (`WorkerSetup.base_roots`), in tasks and as the name of its arm."""


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker for its whole life."""

    roots: tuple[Path, ...]
    base_roots: tuple[Path, ...] = ()
    """Kernels folders of the base revision, loaded beside the first under names of their own."""
    ops: frozenset[str] | None = None
    """Ops whose kernels are loaded; None for all.  A worker need not import the kernels it never calls, nor torch.compile for them."""
    excluded: dict[str, str] = {}
    """Files that are not imported, each with the reason: they ended the process that loaded them first."""
    device: str
    """Torch's name of the device: `cpu` or `cuda:N`."""
    label: str = ""
    """The name of the device in messages, where the user knows it by another one (`Device.label`)."""
    gpu_uuid: str = ""
    interpret: bool = False
    """Whether Triton kernels run in the interpreter in this process."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves it to torch."""
    cpu_process: str = ""
    """The settings with which the process measures on a CPU (`device.cpu_process`), in words; empty where it does not."""
    timer: str = ""
    """The timer that tasks will ask for, made ready while the worker starts; empty if it may only check."""


class CheckTask(msgspec.Struct, frozen=True, kw_only=True):
    """Run the accuracy gate for one kernel on one case."""

    case: Case
    kernel: str
    """Its id, after `BASE` for the base revision's, which is held to head's reference and split chain."""
    seed: int | None = None
    rows: int | None = None
    """Tokens that the case is shrunk to; None for all."""
    silence_s: float | None = None
    """Seconds without a sign of life after which the kernel counts as hung; the worker's usual limit where None."""


class AheadTask(msgspec.Struct, frozen=True, kw_only=True):
    """Run the accuracy gate for kernels on one case while other processes use the device; their code is then in the compilers' caches."""

    case: Case
    kernels: tuple[str, ...]
    seed: int
    checked: bool = True
    """Whether they are judged; otherwise each is called once."""
    repeated_elsewhere: tuple[str, ...] = ()
    """Kernels whose repeated calls (`accuracy.repetition`) another process makes."""
    silence_s: float | None = None


class PrepareTask(msgspec.Struct, frozen=True, kw_only=True):
    """Make ready, while nothing is measured, what a first task would wait for."""

    case: Case
    """Any."""
    timer: str
    """The timer that measurements will ask for."""
    compiler: bool
    """Whether something will be compiled by torch.compile."""
    silence_s: float | None = None


class ExtraArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm with a name and, where given, parameters of its own."""

    name: str
    kernel: str
    """Its id, after `BASE` for the base revision's."""
    params: dict[str, Any] | None = None
    """Parameters of this arm alone; the case's where None."""


class MeasureTask(msgspec.Struct, frozen=True, kw_only=True):
    """Time kernels that passed the gate: what every measurement is told."""

    case: Case
    plan: SamplingPlan
    timer: str
    seed: int
    """Of the input values, the placements and the orders."""
    seconds: float | None = None
    """Time left for this case; None for no limit."""
    silence_s: float | None = None
    """As in `CheckTask`."""
    examine_each_call: bool = False
    """Whether the shared state of the process is examined after every call, and not only after an arm's first one."""


class TimeTask(MeasureTask, frozen=True, kw_only=True):
    """`run`: kernels against their baseline, the yardsticks and the control, for the plan's replicates."""

    kernels: tuple[str, ...]
    baseline: str
    digested: tuple[str, ...] = ()
    """Kernels that are called once more, before the warm-up, to hear what machine code they launch."""


class PairsTask(MeasureTask, frozen=True, kw_only=True):
    """Arms that are compared two by two."""

    arms: tuple[ExtraArm, ...]
    pairs: tuple[Pair, ...]


class CompareTask(PairsTask, frozen=True, kw_only=True):
    """`ab`, first stage: each of head's `kernels` against base's of the same name, among `arms`, until every pair is decided."""

    kernels: tuple[str, ...]
    baseline: str
    """The kernel that the control arm copies."""
    looks: Plan
    """When and how to judge the pairs."""
    skip_identical: bool = False
    """Whether pairs of the same machine code, other than those of `sampled`, are left untimed."""
    sampled: tuple[str, ...] = ()
    """Names of pairs that are timed even so."""


class ConfirmTask(PairsTask, frozen=True, kw_only=True):
    """`ab`, second stage, in a fresh process: claimed pairs again."""

    kernels: tuple[str, ...]
    baseline: str
    lengths: dict[str, int]
    """Replicates of each pair by its name."""


class CalibrationTask(PairsTask, frozen=True, kw_only=True):
    """`calibrate`: `arms` are all arms, without yardsticks, baseline and control."""

    looks: Plan | None = None
    """First stage: when and how to judge the pairs."""
    lengths: dict[str, int] | None = None
    """Second stage: replicates of each pair by its name.  With neither, a pilot: the plan's replicates."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A sign of life and the current step; `kernel` is the kernel or arm that it concerns."""

    text: str
    done: int = 0
    total: int = 0
    kernel: str = ""


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    accuracy: Accuracy


class CheckedAhead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every kernel of an `AheadTask` was called."""

    accuracy: dict[str, Accuracy] = {}
    """By kernel; without kernels whose check raised an error, and those that a compiler tuned by timing."""
    seconds: dict[str, float] = {}
    """By kernel, what its check took, compilation included."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A `PrepareTask` is done."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
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
    wrong: dict[str, str] = {}
    """By arm, why outputs of its timed calls were wrong (`accuracy.timed_outputs`)."""
    suspicious: dict[str, str] = {}
    """By arm, why its times are not believed (`timing.verification`)."""
    unverified: str = ""
    """Why no output of a timed call was compared; empty where some were."""
    minimum_bytes: dict[str, int] = {}
    """By arm, the bytes that any implementation of its work must move."""
    memory_bytes: dict[str, int] = {}
    """By arm, those of them that the memory must have moved when a cold call ends."""
    stream_shape: str = ""
    """How the streaming yardstick was launched; empty without one."""
    coldness: Coldness | None = None
    floor: Floor | None = None
    """The floor of a cold call of the case (`timing.floor`)."""
    phases_s: dict[str, float] = {}
    """Where `seconds` went, by phase of `timing.measure`."""
    first_call_s: dict[str, float] = {}
    """What the first call of each arm took, compilation included."""
    compared: dict[str, Compared] = {}
    """By name, the pairs that were judged."""
    code: dict[str, str] = {}
    """By name of a digested arm, the digest of the machine code that it launches; without arms whose code is not known."""
    same_code: dict[str, bool | None] = {}
    """By name of a compared pair, whether both arms launch the same machine code; None if that is not known."""

    @staticmethod
    def of(timings: CaseTimings, *, timer: str, timer_fallback: str, **known: Any) -> Measured:
        """The reply to a measurement with these timings; `known` are the fields that the timings do not hold."""
        return Measured(
            samples=timings.samples,
            host_us=timings.host_us,
            extra_memory_bytes=timings.extra_memory_bytes,
            timer=timer,
            timer_fallback=timer_fallback,
            seconds=timings.seconds,
            cut_short=timings.cut_short,
            timer_retries=timings.timer_retries,
            repeated_rounds=timings.repeated_rounds,
            late_calls=dict(timings.late_calls),
            wrong=timings.wrong,
            suspicious=timings.suspicious,
            unverified=timings.unverified,
            coldness=timings.coldness,
            floor=timings.floor,
            phases_s=dict(timings.phases_s),
            first_call_s=timings.first_call_s,
            compared=timings.compared,
            **known,
        )

    def numbered(self, process: int) -> Measured:
        """The same, its samples naming that process."""
        return msgspec.structs.replace(self, samples=[msgspec.structs.replace(sample, process=process) for sample in self.samples])


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why a task gave no result.  `kernel` is empty if no kernel is to blame."""

    status: Status
    reason: str
    kernel: str = ""
    unfit: bool = False
    """Whether the device or its timer, not a kernel, is at fault (exit code 3)."""
    tampered: bool = False
    """Whether the state that kernels share in a process was left changed; `kernel` changed it, or nobody knows who where that is empty."""
    file: str = ""
    """The kernel file that left it changed when it was imported."""
    broken: bool = False
    """Whether the worker's process can do no further work, such as after an illegal access on a GPU."""
    lost: bool = False
    """Whether the worker's process died or was ended; only the runner says so."""


Task = CheckTask | AheadTask | PrepareTask | MeasureTask
Reply = Checked | CheckedAhead | Prepared | Measured | Failure


def kernels_of(task: Task) -> tuple[str, ...]:
    """Names of the kernels that a task calls."""
    if isinstance(task, CheckTask):
        return (task.kernel,)
    if isinstance(task, AheadTask | TimeTask):
        return task.kernels
    return tuple(dict.fromkeys((*getattr(task, "kernels", ()), *(arm.kernel for arm in task.arms)))) if isinstance(task, PairsTask) else ()
