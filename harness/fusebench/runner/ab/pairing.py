"""The kernels of head and base as pairs of arms: the tasks that measure them, and the figures of a case besides its findings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ...schema import AAPair, Case, Estimate, Finding, Sample, SamplingPlan, Status
from ...stats.paired import ratio_estimate, spans_by_replicate, time_estimate
from ...stats.sequential import Plan, judge
from ...store.comparison_record import ComparedCase
from ...timing.pairs import Compared, Pair, pair_logs, replicate_logs
from ...timing.placement import CONTROL, COPY, STREAM
from ...verdict.conclusion import placements_for
from ..case_kernels import CaseKernels
from ..workers.process import WorkerProcess
from ..workers.protocol import BASE, CompareTask, ConfirmTask, ExtraArm, Failure, Measured
from ..workers.remarks import label_refused


def paired_task(
    case: Case,
    names: tuple[str, ...],
    *,
    plan: SamplingPlan,
    looks: Plan,
    timer: str,
    seconds: float | None,
    skip_identical: bool,
    sampled: tuple[str, ...],
) -> CompareTask:
    """Head's kernel against base's, for every name; the rest is as in `protocol.CompareTask`."""
    pairs = tuple(Pair(name, new=name, old=f"{BASE}{name}") for name in names)
    return CompareTask(
        case=case,
        kernels=names,
        baseline=names[0],
        plan=plan,
        timer=timer,
        seed=random.SystemRandom().randrange(2**31),
        seconds=seconds,
        arms=tuple(ExtraArm(name=f"{BASE}{name}", kernel=f"{BASE}{name}") for name in names),
        pairs=pairs,
        looks=looks,
        skip_identical=skip_identical,
        sampled=sampled,
    )


def confirming_task(task: CompareTask, claims: Mapping[str, Finding]) -> ConfirmTask:
    """The measurement of `task` for a fresh process: only pairs with a claimed change, each with as many replicates as its finding.

    Args:
        claims: regressions and improvements by the name of their pair.
    """
    pairs = tuple(pair for pair in task.pairs if pair.name in claims)
    wanted = {arm for pair in pairs for arm in (pair.new, pair.old)}
    kernels = tuple(kernel for kernel in task.kernels if kernel in wanted)
    # Without `seconds`: a confirmation that is cut short says nothing.
    return ConfirmTask(
        case=task.case,
        plan=task.plan,
        timer=task.timer,
        seed=task.seed,
        kernels=kernels,
        baseline=kernels[0] if kernels else task.baseline,
        arms=tuple(arm for arm in task.arms if arm.name in wanted),
        pairs=pairs,
        lengths={pair.name: placements_for(claims[pair.name]) for pair in pairs},
    )


def measure_in_fresh(
    task: ConfirmTask,
    fresh: Sequence[WorkerProcess],
    *,
    ask: Callable[[ConfirmTask, WorkerProcess], Measured | Failure],
    keep: Callable[[list[Sample]], None],
    on_process: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[list[float]]] | Failure:
    """Log ratios head/base of each pair by its name, one list per fresh process, one value per replicate; or the first failure.

    Args:
        task: as `confirming_task` makes it.
        fresh: workers that made none of the findings.
        ask: gives a task to a worker, and returns the reply of a measurement without interference.
        keep: given the samples of each process, which they name by its number, from 1.
        on_process: called with the number of processes done, and that of all.
    """
    logs: dict[str, list[list[float]]] = {pair.name: [] for pair in task.pairs}
    for number, worker in enumerate(fresh):
        on_process(number, len(fresh))
        reply = ask(msgspec.structs.replace(task, seed=random.SystemRandom().randrange(2**31)), worker)
        if isinstance(reply, Failure):
            return reply
        if refused := label_refused(reply, task.plan.trim):
            return Failure(status=Status.NOT_MEASURED, reason=f"its times are labelled cold, but {refused}")
        if disbelieved := {**reply.suspicious, **reply.wrong}:
            arm, why = next(iter(disbelieved.items()))
            return Failure(status=Status.WRONG if reply.wrong else Status.NOT_MEASURED, reason=f"{arm}: {why}", kernel=arm)
        keep(reply.numbered(number + 1).samples)
        for pair in task.pairs:
            logs[pair.name].append(pair_logs(reply.samples, pair, task.plan.trim))
    return logs


def aa_pair_of(case_key: str, compared: Compared | None) -> AAPair | None:
    """A comparison of identical code; None if it was not timed."""
    if compared is None:
        return None
    return AAPair(
        case=case_key,
        kernel=compared.name,
        time_us=compared.old_us,
        change=compared.finding.change,
        kind=compared.finding.kind,
        launches=compared.launches,
    )


def control_aa_pair(case_key: str, kernel: str, samples: Sequence[Sample], plan: SamplingPlan, looks: Plan) -> AAPair | None:
    """The control arm against the kernel that it copies, judged like any pair; None if nothing was timed."""
    logs = pair_logs(samples, Pair(CONTROL, new=CONTROL, old=kernel), plan.trim)
    if not logs:
        return None
    own = [sample for sample in samples if sample.arm == kernel]
    time_us = math.exp(replicate_logs(own, plan.trim)[kernel]) / 1e3
    finding = judge(logs, time_us, looks)
    name = f"{CONTROL} ({kernel})"
    return AAPair(case=case_key, kernel=name, time_us=time_us, change=finding.change, kind=finding.kind, launches=own[0].kernels)


def case_figures(unit: CaseKernels, measured: Measured, plan: SamplingPlan, control: str) -> ComparedCase:
    """The case with its yardsticks and its control; without figures where nothing was timed."""
    replicates = {arm: list(found.values()) for arm, found in spans_by_replicate(measured.samples).items()}
    if not replicates:
        return ComparedCase(case=unit.case, shape=unit.shape)
    return ComparedCase(
        case=unit.case,
        shape=unit.shape,
        copy_us=_microseconds(time_estimate(replicates[COPY], plan.trim)),
        stream_us=_microseconds(time_estimate(replicates[STREAM], plan.trim)),
        stream_shape=measured.stream_shape,
        floor=measured.floor,
        control=control,
        control_ratio=ratio_estimate(replicates[control], replicates[CONTROL], plan.trim),
        replicates=len(replicates[STREAM]),
        gpu_seconds=measured.phases_s.get("timed rounds", 0.0),
        repeated_rounds=measured.repeated_rounds,
    )


def _microseconds(time_ns: Estimate) -> Estimate:
    return Estimate(time_ns.value / 1e3, time_ns.low / 1e3, time_ns.high / 1e3, time_ns.level)
