"""Times the arms of one case: replicates of balanced rounds, each replicate on a fresh random placement.

The number of replicates is fixed or, where pairs of arms are compared, follows from the pairs' results (`stats.sequential`).
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UsageError
from ..registry import Op
from ..registry.calling import without_garbage_collection
from ..registry.op import Buffers
from ..schema import CacheState, SamplingPlan
from ..stats.sequential import Plan
from .arm import Arm, Timer
from .case_timings import CaseTimings, extra_memory_bytes, host_cost_us
from .coldness import observe_coldness
from .floor import floor_of, launch_costs
from .pairs import FixedLength, Judge, Lengths, Pair, buffer_groups, in_same_buffers
from .placement import CONTROL, ArmSpec, Placement
from .preparation import Preparation
from .replicate import balanced_rounds, time_rounds
from .values import FreshValues
from .verification import Verification
from .yardstick import Mix, mix_of

if TYPE_CHECKING:
    import torch

    from ..accuracy.timed_outputs import TimedOutputs

Named = TypeVar("Named", Arm, ArmSpec)

CODE = "digests of machine code"
"""The phase of `decided_before`."""
VERIFYING = "outputs of timed calls, and bursts"
"""The phase in which timed calls are verified."""
PLACING = "placements"
"""The phase in which buffers are placed anew."""
TIMING = "timed rounds"
"""The phase of the timed calls."""
MINIMUM_REPLICATES = 2
"""Fewer give no interval, whatever the budget is."""
MEMORY_SHARE = 0.5
"""Part of the device's memory that the arms of a case may take for themselves; the rest is for yardsticks, new inputs and references."""
ARM_MULTIPLES = 3
"""Memory that an arm takes in multiples of its inputs: buffers of its own, those of the placement before until all arms have new ones, and
the outputs that are kept of a timed call."""
ONE_GROUP = "all kernels"
"""Name of the buffer group of all kernels, where the memory does not hold buffers for each."""


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
    outputs: TimedOutputs | None = None,
) -> CaseTimings:
    """Time `specs` against one another.

    Args:
        case_key: the case in the samples.
        params: the op's Params.
        device: torch device; `cpu` or `cuda:N`.
        plan: rounds of a replicate and, without `looks` and `lengths`, the number of replicates.
        seed: of the input values, the placements and the orders.
        deadline: `time.monotonic()` value after which no replicate starts (two are always made).
        settle: called with one round of work before the first replicate; runs it until the clocks are steady.
        on_arm: called with an arm's name before its first call, which may compile it.
        on_call: called with an arm's name before each of its calls, timed or not, outside the timed part, and with an empty name while no
            arm is called; must be cheap.
        on_replicate: called with the number of replicates done, and the largest possible number.
        pairs: arms to compare with one another.  Where `in_same_buffers` is true, the arms of a pair share buffers, and so do the control
            and the arm that it copies.
        looks: judge the pairs at these numbers of replicates, leave out arms of decided pairs only, and stop when no pair is open.  Arms
            outside all pairs stay to the end, and so do the control and the arm that it copies.  None: take the plan's number of
            replicates and judge nothing.
        lengths: without `looks`, the number of replicates of each pair, by its name; its arms are left out after them, as above.
        decided_before: called once, with all arms after their first calls and before the warm-up; returns the names of pairs that need no
            timing, and may call the arms.
        outputs: judges outputs of timed calls.  Every call then gets new inputs, and its time is held against a burst.  None for functions
            without a definition of their outputs, whose inputs stay.

    Raises:
        TimerError: the timer failed repeatedly (lost records, for example).
        UsageError: two pairs share a name, a pair names an arm outside `specs`, or `lengths` lacks a pair.
    """
    import torch

    started = time.monotonic()
    rng = random.Random(seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    timings = CaseTimings()
    judge = _judge_of(specs, pairs, looks, plan)
    length = judge or (Lengths(pairs, lengths) if lengths is not None else FixedLength(plan.replicates))
    kept = {name for spec in specs if spec.name == CONTROL for name in (CONTROL, _copied_by(spec))}
    draw = functools.partial(_drawn, op, device=device, generator=generator, rng=rng if outputs is not None else None)
    with timings.phase("inputs"):
        values = draw(params)
        own_values = {spec.name: draw(spec.params) for spec in specs if spec.params is not None}
        specs = _fitting(_grouped(specs, pairs, plan.cache), sum(value.nbytes for value in values.values()), _memory_bytes(device))
        verification = Verification(outputs, values, device, seed)
        prepare = Preparation(device, plan.cache, {spec.name: spec.buffer_group or spec.name for spec in specs})
    for replicate in range(length.replicates):
        if deadline is not None and replicate >= MINIMUM_REPLICATES and time.monotonic() > deadline:
            timings.cut_short = True
            break
        on_call("")
        with timings.phase(PLACING):
            placement = Placement(op, params, values, device, rng)
            arms = _placed(placement, _without(specs, length.idle_arms() - kept), own_values, rng, on_call)
        with timings.phase("first calls, which compile" if replicate == 0 else PLACING):
            seconds = _first_calls(arms, device, on_arm if replicate == 0 else lambda name: None)
        if replicate == 0:
            timings.first_call_s = seconds
            with timings.phase(CODE):
                over = _decide(judge, decided_before(arms))
            if over:
                break
            arms = _without(arms, length.idle_arms() - kept)
            _warm_up(arms, device, settle, timings)
            if device.type == "cuda" and plan.cache is CacheState.COLD:
                _prove_cold(mix_of(op, params), timer, prepare, device, timings)
            prepare.give_head_start(timings.host_us)
        verification.choose(placement.watches, arms, plan.rounds)
        with timings.phase(TIMING), without_garbage_collection():
            timed = time_rounds(balanced_rounds(arms, plan.rounds, rng), timer, prepare, prepare.lengthen)
        taken = timings.take_in(case_key, replicate, timed)
        with timings.phase(VERIFYING):
            verification.collect(placement.watches, arms, timings.host_us, taken)
        prepare.learn(taken)
        on_replicate(replicate + 1, length.replicates)
        length.add(taken)
        if length.over:
            break
    timings.compared = judge.compared() if judge is not None else {}
    on_call("")
    del placement, arms
    return _concluded(timings, verification, started)


def _concluded(timings: CaseTimings, verification: Verification, started: float) -> CaseTimings:
    with timings.phase(VERIFYING):
        verification.finish(timings)
    timings.finish(started)
    return timings


def _drawn(
    op: Op, params: Any, *, device: torch.device, generator: torch.Generator, rng: random.Random | None
) -> Mapping[str, torch.Tensor]:
    """Inputs of one draw; with `rng` new ones for every call."""
    if rng is None:
        return op.buffers(params, device=device, generator=generator)
    return FreshValues(op, params, device=device, generator=generator, rng=rng)


def _decide(judge: Judge | None, decided: Collection[str]) -> bool:
    """Drop the pairs that need no timing; returns whether none is left."""
    if judge is not None:
        judge.drop(decided)
    return judge is not None and judge.over


def _without(named: Sequence[Named], idle: Collection[str]) -> list[Named]:
    return [one for one in named if one.name not in idle]


def _copied_by(control: ArmSpec) -> str:
    """Name of the arm that the control copies."""
    return str(control.kernel.id) if control.kernel is not None else ""


def _grouped(specs: Sequence[ArmSpec], pairs: Sequence[Pair], cache: CacheState) -> Sequence[ArmSpec]:
    """`specs` with shared buffers, where `in_same_buffers`, for the arms of each pair, and for the control and the arm that it copies."""
    if not pairs or not in_same_buffers(cache):
        return specs
    controls = [Pair(CONTROL, new=CONTROL, old=_copied_by(spec)) for spec in specs if spec.name == CONTROL]
    groups = buffer_groups([spec.name for spec in specs], [*pairs, *controls])
    return [replace(spec, buffer_group=groups[spec.name]) for spec in specs]


def _fitting(specs: Sequence[ArmSpec], nbytes: int, memory_bytes: int | None) -> Sequence[ArmSpec]:
    """`specs` with one set of buffers for all kernels, where the memory would not hold one for each; cases that large fill no cache.

    Every call gets new inputs all the same.  Twelve kernels of HunyuanVideo's joint QK norm and RoPE took 75 of an H100's 79 GiB, and ten
    of Wan 14B's residual norms 76: the split chain, whose temporaries are the largest, ran out of memory.

    Args:
        nbytes: of the case's inputs.
        memory_bytes: of the device; None where that sets no limit.
    """
    groups = {spec.buffer_group or spec.name for spec in specs if spec.kernel is not None}
    fits = memory_bytes is None or len(groups) * ARM_MULTIPLES * nbytes <= MEMORY_SHARE * memory_bytes
    if fits or any(spec.params is not None for spec in specs):
        return specs
    return [spec if spec.kernel is None else replace(spec, buffer_group=ONE_GROUP) for spec in specs]


def _memory_bytes(device: torch.device) -> int | None:
    """The memory of a GPU; a CPU's swaps."""
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def _placed(
    placement: Placement,
    specs: Sequence[ArmSpec],
    own_values: Mapping[str, Buffers],
    rng: random.Random,
    on_call: Callable[[str], None],
) -> list[Arm]:
    """The arms in the order of `specs`, placed in random order, so that neither arm of a pair always gets the lower addresses."""
    by_group: dict[str, list[ArmSpec]] = {}
    for spec in specs:
        by_group.setdefault(spec.buffer_group or spec.name, []).append(spec)
    placed: dict[str, Arm] = {}
    for group in rng.sample(list(by_group), len(by_group)):
        placed.update({arm.name: _announced(arm, on_call) for arm in placement.together(by_group[group], own_values)})
    return [placed[spec.name] for spec in specs]


def _judge_of(specs: Sequence[ArmSpec], pairs: Sequence[Pair], looks: Plan | None, plan: SamplingPlan) -> Judge | None:
    names = {spec.name for spec in specs}
    unknown = [arm for pair in pairs for arm in (pair.new, pair.old) if arm not in names]
    if unknown:
        raise UsageError(f"a pair names the arm {unknown[0]!r}, which is not measured; there are {', '.join(sorted(names))}")
    return Judge(pairs, looks, plan.trim) if pairs and looks is not None else None


def _announced(arm: Arm, on_call: Callable[[str], None]) -> Arm:
    """`arm`, announcing its name before every call: `restore` precedes each call and is never timed."""

    def restore() -> None:
        on_call(arm.name)
        arm.restore()

    return replace(arm, restore=restore)


def _warm_up(arms: Sequence[Arm], device: torch.device, settle: Callable[[Callable[[], None]], None], timings: CaseTimings) -> None:
    """Work until the clocks are steady; on a GPU then measure host time and memory, which the timer does not see."""
    with timings.phase("warm-up to steady clocks"):
        settle(lambda: _round_of_work(arms, device))
    if device.type == "cuda":
        with timings.phase("host cost and memory"):
            timings.host_us = {arm.name: host_cost_us(arm) for arm in arms}
            timings.extra_memory_bytes = {arm.name: extra_memory_bytes(arm, device) for arm in arms}


def _prove_cold(mix: Mix, timer: Timer, prepare: Preparation, device: torch.device, timings: CaseTimings) -> None:
    """Observe the eviction and the memory's speed, and from these the floor of a cold call."""
    with timings.phase("proof that cold is cold"):
        timings.coldness = observe_coldness(timer, prepare.evict, device, mix)
    with timings.phase("launch costs"):
        costs = launch_costs(timer, prepare.evict, device)
    timings.floor = floor_of(costs, timings.coldness, mix)
    timings.timer_retries += timings.coldness.retries + costs.retries


def _first_calls(arms: Sequence[Arm], device: torch.device, on_arm: Callable[[str], None]) -> dict[str, float]:
    """Call each arm once on its new buffers and wait for it, so that a device error appears while its arm is named.

    Returns the seconds of each call, by arm.
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
        with without_garbage_collection():
            arm.call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
