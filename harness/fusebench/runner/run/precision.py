"""Measures a case in several worker processes: in a given number, or in enough to know its fused kernels' speedups to a precision.

A process can change a kernel's time for its whole life: on an H200 the times of the copy yardstick and of a split chain differ by 0.4 %
between processes, and no number of replicates in one process shows that. So more precision needs more processes per case, not more
replicates per process; `stats.paired` takes each process as one number.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import msgspec

from ...schema import Estimate, Measurement, Result, Role, SamplingPlan
from ...stats.paired import half_width
from ..context import MeasuringContext
from ..workers.process import WorkerProcess
from ..workers.protocol import Failure, Measured, TimeTask

LOOKS = (8, 12, 16, 20)
"""Numbers of processes after which to see whether they suffice; those up to the next look are started together.

Speedups of the published QK-norm cases scatter between processes of 12 replicates by 0.2 to 0.4 % on an H200 (0.25 % between processes and
0.7 % between replicates make 0.32 %).  Student's t then knows one to 0.27 % from eight processes, to 0.20 % from twelve, to 0.17 % from
sixteen and to 0.15 % from twenty.

To stop where the scatter looks small is to stop where it looks smaller than it is, and of few processes it often does.  With a look at
four, ten runs that claimed 0.2 % lay up to 0.54 % apart; from eight on, 95 % intervals hold the true value in 94 % of simulated cases with
one fused kernel, and in 95 % of those with three, all of which must reach the precision before it ends.
"""


def begin_ahead(context: MeasuringContext) -> None:
    """Start the processes that every case needs in the background, during its checks."""
    context.pool.begin(_ahead(context.plan))


def measure_in_processes(
    task: TimeTask, context: MeasuringContext, *, enough: Callable[[Sequence[Measured]], bool], ahead: bool = True
) -> list[Measured] | Failure:
    """The answer of each process, in order, with its number in its samples; or the first failure.

    One process measures, the native one, unless the task's plan asks for more or for a precision.

    Args:
        task: its `seconds` are those of the case: no process is begun after them.
        enough: whether the speedups are known to the requested precision.
        ahead: whether processes begin before they are needed; not where the time may end before they are asked.
    """
    plan = task.plan
    looks = LOOKS if plan.precision is not None else (plan.processes,)
    most = looks[-1]
    deadline = None if task.seconds is None else time.monotonic() + task.seconds
    replies: list[Measured] = []
    if ahead and (others := _ahead(plan)):
        context.fresh(others)  # before the first one measures, the workers started ahead wait idle

    def time_is_up() -> bool:
        return bool(replies) and deadline is not None and time.monotonic() >= deadline

    for number in range(most):
        if plan.precision is not None and number in looks and enough(replies):
            break
        worker = None if time_is_up() else _worker(context, number, looks)
        if worker is None or time_is_up():  # starting the worker may have taken the rest of it
            wanted = f"{looks[0]}" if most == looks[0] else f"{looks[0]} to {most}"
            context.warn(f"case {task.case.key}: the budget ended after process {number} of {wanted}")
            break
        seconds = None if deadline is None else deadline - time.monotonic()
        doing = "measure" if most == 1 else f"measure in process {number + 1} of {'at most ' if most > looks[0] else ''}{most}"
        reply = context.ask(task if number == 0 else _again(task, replies[0].timer, seconds), worker, doing)
        if isinstance(reply, Failure):
            return msgspec.structs.replace(reply, reason=f"in process {number + 1}: {reply.reason}") if number else reply
        replies.append(reply.numbered(number) if number else reply)
    return replies


def measure_in_fresh(task: TimeTask, context: MeasuringContext, begin: int, end: int, *, first: int) -> list[Measured] | Failure:
    """The answers of the fresh processes from `begin` on and below `end`, counted from 0; or the first failure.

    Args:
        task: the measurement that is repeated, with the timer that it was made with.
        first: processes that measured the case at first, whose numbers come before those of the fresh ones.
    """
    replies: list[Measured] = []
    for number, worker in enumerate(context.confirming(end)[begin:], start=begin):
        reply = context.ask(_again(task, task.timer), worker, f"remeasure in fresh process {number + 1} of {end}")
        if isinstance(reply, Failure):
            return msgspec.structs.replace(reply, reason=f"in fresh process {number + 1}: {reply.reason}")
        replies.append(reply.numbered(first + number))
    return replies


def _ahead(plan: SamplingPlan) -> int:
    """How many processes begin before a case measures."""
    return (LOOKS[0] if plan.precision is not None else plan.processes) - 1


def _worker(context: MeasuringContext, number: int, looks: Sequence[int]) -> WorkerProcess:
    """The worker of process `number`, from 0 and below the last of `looks`."""
    if number == 0:
        return context.pool.native
    wanted = next(look for look in looks if look > number)
    return context.fresh(wanted - 1)[number - 1]


def _again(task: TimeTask, timer: str, seconds: float | None = None) -> TimeTask:
    """The same measurement for another process, on placements of its own.

    With the timer of the first one: times of two timers have no mean.  And without digests: the first one has said what code runs.
    """
    seed = random.SystemRandom().randrange(2**31)
    return msgspec.structs.replace(task, seed=seed, timer=timer, seconds=seconds, digested=())


def imprecise(results: Sequence[Result], plan: SamplingPlan) -> list[str]:
    """One line per kernel whose speedup is known less precisely than the plan asks; without a fused kernel, every kernel counts."""
    if plan.precision is None:
        return []
    found = [(result, timing, timing.speedup) for result in results if (timing := result.measurement) is not None and timing.speedup]
    fused = [one for one in found if one[0].role is Role.FUSED]
    texts = [(result.kernel, _imprecise(timing, speedup, plan.precision)) for result, timing, speedup in fused or found]
    return [f"the speedup of {kernel} is {text}" for kernel, text in texts if text]


def _imprecise(timing: Measurement, speedup: Estimate, precision: float) -> str:
    if timing.processes == 1:
        return f"not known to {100 * precision:.2f} %: its interval is one process' alone, and what differs between processes is not in it"
    known = half_width(speedup)
    if known <= precision:
        return ""
    taken = f"after {timing.replicates} replicates in {timing.processes} processes"
    return f"known to {100 * known:.2f} %, not to {100 * precision:.2f} %, {taken}"
