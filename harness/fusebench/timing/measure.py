"""Times the arms of one case: replicates of balanced rounds, each replicate on a fresh random placement.

How many replicates is fixed, or, where pairs of arms are to be compared, decided by what the pairs show (`stats.sequential`).
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UsageError
from ..registry import Op
from ..registry.op import Buffers
from ..schema import CacheState, Sample, SamplingPlan
from ..stats.sequential import Plan
from .arm import Arm, Timer
from .coldness import Coldness, observe_coldness
from .host_cost import extra_memory_bytes, host_cost_us
from .lengths import FixedLength, Lengths
from .orders import balanced_rounds
from .pairs import Compared, Judge, Pair, buffer_groups, in_same_buffers
from .placement import CONTROL, ArmSpec, Placement
from .preparation import Preparation
from .replicate import TimedRounds, time_rounds

if TYPE_CHECKING:
    import torch

Named = TypeVar("Named", Arm, ArmSpec)

CODE = "digests of machine code"
"""The phase of `decided_before`."""
BETWEEN = "between the phases of measurements"
"""The phase that holds what no other does, so that phases sum up to `seconds`."""
MINIMUM_REPLICATES = 2
"""Fewer give no interval, whatever the budget says."""


@dataclass
class CaseTimings:
    """What was measured on one case."""

    samples: list[Sample] = field(default_factory=list)
    host_us: dict[str, float] = field(default_factory=dict)
    """Host cost per call, by arm; empty on a CPU."""
    extra_memory_bytes: dict[str, int] = field(default_factory=dict)
    coldness: Coldness | None = None
    """What was seen of the eviction; None for warm samples and on a CPU."""
    timer_retries: int = 0
    """Times that the timer failed, as where records were lost, and timed a replicate, its repeated rounds or the proof that cold is cold
    again."""
    repeated_rounds: int = 0
    """Rounds that were timed again since the host came late inside of a call (`timing.replicate`)."""
    late_calls: Counter[str] = field(default_factory=Counter)
    """By arm, how many of its samples are of calls that waited for the host all the same."""
    seconds: float = 0.0
    cut_short: bool = False
    """Whether the deadline ended the case before all its replicates, or before its pairs were decided."""
    compared: dict[str, Compared] = field(default_factory=dict)
    """By name, the pairs that were judged."""
    phases_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Where `seconds` went."""
    first_call_s: dict[str, float] = field(default_factory=dict)
    """What the very first call of each arm took, compilation included."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what the block takes as phase `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] += time.monotonic() - began

    def take_in(self, case_key: str, replicate: int, timed: TimedRounds) -> list[Sample]:
        """Keep what was timed of a replicate, and count what that took.  Returns its samples."""
        taken = _samples(case_key, replicate, timed)
        self.samples += taken
        self.timer_retries += timed.retries
        self.repeated_rounds += timed.repeated_rounds
        self.late_calls += timed.late_calls
        return taken

    def finish(self, started: float) -> None:
        """Close the books of a measurement that began at `started` (of `time.monotonic`)."""
        self.seconds = time.monotonic() - started
        self.phases_s[BETWEEN] += self.seconds - sum(self.phases_s.values())


def measure_case(
    case_key: str,
    op: Op,
    params: Any,
    specs: Sequence[ArmSpec],
    *,
    device: torch.device,
    plan: SamplingPlan,
    timer: Timer,
    seed: int,
    deadline: float | None = None,
    settle: Callable[[Callable[[], None]], None] = lambda work: work(),
    on_arm: Callable[[str], None] = lambda name: None,
    on_call: Callable[[str], None] = lambda name: None,
    on_replicate: Callable[[int, int], None] = lambda done, most: None,
    pairs: Sequence[Pair] = (),
    looks: Plan | None = None,
    lengths: Mapping[str, int] | None = None,
    decided_before: Callable[[Sequence[Arm]], Collection[str]] = lambda arms: (),
) -> CaseTimings:
    """Time `specs` against one another.

    Args:
        case_key: goes into the samples.
        params: the op's Params.
        device: torch device; `cpu` or `cuda:N`.
        plan: rounds of a replicate, and without `looks` and `lengths` the number of replicates.
        seed: of the input values, the placements and the orders.
        deadline: `time.monotonic()` value after which no replicate is started (two are always made).
        settle: called with one round of work before the first replicate; runs it until the clocks are steady.
        on_arm: called with an arm's name before its first call, which may compile it.
        on_call: called with an arm's name before each of its calls, timed or not, outside what is timed, and with an empty name when no
            arm is being called; must be cheap.
        on_replicate: called with the number of replicates done, and the most that there can be.
        pairs: arms to compare with one another.  Where `in_same_buffers` says so, those of a pair lie in the same ones, and then so does
            the control with what it is a copy of.
        looks: judge the pairs at these numbers of replicates, leave out arms that only decided pairs name, and stop when none is open.
            Arms that no pair names, and the control with what it is a copy of, stay to the end.  None: as many replicates as the plan
            says, and nothing is judged.
        lengths: without `looks`, the number of replicates of each pair by its name; its arms are left out after them, as above.
        decided_before: asked once, with all arms after their first calls and before the warm-up, for the names of pairs that need not be
            timed; it may call the arms.

    Raises:
        TimerError: the timer failed again and again, as where records are missing.
        UsageError: two pairs share a name, a pair names an arm that is not among `specs`, or `lengths` lacks one.
    """
    import torch

    started = time.monotonic()
    rng = random.Random(seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    timings = CaseTimings()
    judge = _judge_of(specs, pairs, looks, plan)
    ending = judge or (Lengths(pairs, lengths) if lengths is not None else FixedLength(plan.replicates))
    kept = {name for spec in specs if spec.name == CONTROL for name in (CONTROL, _copied_by(spec))}
    specs = _housed(specs, pairs) if pairs and in_same_buffers(plan.cache) else specs
    with timings.phase("inputs"):
        values = op.buffers(params, device=device, generator=generator)
        own_values = {spec.name: op.buffers(spec.params, device=device, generator=generator) for spec in specs if spec.params is not None}
        prepare = Preparation(device, plan.cache)
    for replicate in range(ending.replicates):
        if deadline is not None and replicate >= MINIMUM_REPLICATES and time.monotonic() > deadline:
            timings.cut_short = True
            break
        on_call("")
        with timings.phase("placements"):
            placement = Placement(op, params, values, device, rng)
            arms = _placed(placement, _without(specs, ending.idle_arms() - kept), own_values, rng, on_call)
        with timings.phase("first calls, which compile" if replicate == 0 else "placements"):
            seconds = _first_calls(arms, device, on_arm if replicate == 0 else lambda name: None)
        if replicate == 0:
            timings.first_call_s = seconds
            with timings.phase(CODE):
                decided = decided_before(arms)
            if judge is not None:
                judge.drop(decided)
                if judge.over:
                    break
                arms = _without(arms, judge.idle_arms() - kept)
            _warm_up(arms, device, settle, timings)
            if device.type == "cuda" and plan.cache is CacheState.COLD:
                with timings.phase("proof that cold is cold"):
                    timings.coldness = observe_coldness(timer, prepare.evict, device)
                timings.timer_retries += timings.coldness.retries
            prepare.give_head_start(timings.host_us)
        rounds = balanced_rounds(arms, plan.rounds, rng)
        with timings.phase("timed rounds"), _without_garbage_collection():
            timed = time_rounds(rounds, timer, prepare)
        taken = timings.take_in(case_key, replicate, timed)
        prepare.learn(taken)
        on_replicate(replicate + 1, ending.replicates)
        ending.add(taken)
        if ending.over:
            break
    if judge is not None:
        timings.compared = judge.compared()
    timings.finish(started)
    return timings


def _without(named: Sequence[Named], idle: Collection[str]) -> list[Named]:
    return [one for one in named if one.name not in idle]


def _copied_by(control: ArmSpec) -> str:
    """Name of the arm that the control is a copy of."""
    return str(control.kernel.id) if control.kernel is not None else ""


def _housed(specs: Sequence[ArmSpec], pairs: Sequence[Pair]) -> list[ArmSpec]:
    """`specs`, those that pairs join, and the control with what it is a copy of, in the same buffers."""
    controls = [Pair(CONTROL, new=CONTROL, old=_copied_by(spec)) for spec in specs if spec.name == CONTROL]
    homes = buffer_groups([spec.name for spec in specs], [*pairs, *controls])
    return [replace(spec, home=homes[spec.name]) for spec in specs]


def _placed(
    placement: Placement,
    specs: Sequence[ArmSpec],
    own_values: Mapping[str, Buffers],
    rng: random.Random,
    on_call: Callable[[str], None],
) -> list[Arm]:
    """The arms in the order of `specs`, placed in random order, so that neither arm of a pair always has the lower addresses."""
    by_home: dict[str, list[ArmSpec]] = {}
    for spec in specs:
        by_home.setdefault(spec.home or spec.name, []).append(spec)
    placed: dict[str, Arm] = {}
    for home in rng.sample(list(by_home), len(by_home)):
        placed.update({arm.name: _announced(arm, on_call) for arm in placement.together(by_home[home], own_values)})
    return [placed[spec.name] for spec in specs]


def _judge_of(specs: Sequence[ArmSpec], pairs: Sequence[Pair], looks: Plan | None, plan: SamplingPlan) -> Judge | None:
    names = {spec.name for spec in specs}
    unknown = [arm for pair in pairs for arm in (pair.new, pair.old) if arm not in names]
    if unknown:
        raise UsageError(f"a pair names the arm {unknown[0]!r}, which is not measured; there are {', '.join(sorted(names))}")
    return Judge(pairs, looks, plan.trim) if pairs and looks is not None else None


def _announced(arm: Arm, on_call: Callable[[str], None]) -> Arm:
    """`arm`, saying its name before every call: `restore` precedes each one and is never timed."""

    def restore() -> None:
        on_call(arm.name)
        arm.restore()

    return replace(arm, restore=restore)


def _warm_up(arms: Sequence[Arm], device: torch.device, settle: Callable[[Callable[[], None]], None], timings: CaseTimings) -> None:
    """Work until the clocks are steady; on a GPU then take what the timer does not see: host time and memory."""
    with timings.phase("warm-up to steady clocks"):
        settle(lambda: _round_of_work(arms, device))
    if device.type == "cuda":
        with timings.phase("host cost and memory"):
            timings.host_us = {arm.name: host_cost_us(arm) for arm in arms}
            timings.extra_memory_bytes = {arm.name: extra_memory_bytes(arm, device) for arm in arms}


def _first_calls(arms: Sequence[Arm], device: torch.device, on_arm: Callable[[str], None]) -> dict[str, float]:
    """One call of each arm on its new buffers, waited for, so that an error of the device shows while its arm is named.

    Returns the seconds that each took.
    """
    seconds = {}
    for arm in arms:
        on_arm(arm.name)
        began = time.monotonic()
        _round_of_work([arm], device)
        seconds[arm.name] = time.monotonic() - began
    return seconds


def _round_of_work(arms: Sequence[Arm], device: torch.device) -> None:
    import torch

    for arm in arms:
        arm.restore()
        arm.call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """As `timeit` does: the collector would stop the host in the middle of a call, and walks every record of the profiler again and again
    (a fifth of what a timed call cost)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _samples(case_key: str, replicate: int, timed: TimedRounds) -> list[Sample]:
    return [
        Sample(
            case=case_key,
            arm=arm.name,
            replicate=replicate,
            round=number,
            position=position,
            span_ns=timing.span_ns,
            busy_ns=timing.busy_ns,
            kernels=timing.kernels,
        )
        for number, (order, timings) in enumerate(zip(timed.rounds, timed.timings, strict=True))
        for position, (arm, timing) in enumerate(zip(order, timings, strict=True))
    ]
