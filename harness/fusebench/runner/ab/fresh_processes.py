"""Findings measured again in fresh processes: every one of them loads, compiles and places everything anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ...schema import Finding, Sample, Status
from ...stats.confirmation import placements_for
from ...timing.pairs import pair_logs
from ..cold_label import label_refused
from ..workers.process import WorkerProcess
from ..workers.protocol import Failure, Measured, MeasureTask


def in_fresh_processes(
    task: MeasureTask,
    claims: Mapping[str, Finding],
    fresh: Sequence[WorkerProcess],
    *,
    ask: Callable[[MeasureTask, WorkerProcess], Measured | Failure],
    keep: Callable[[list[Sample]], None],
    on_process: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[list[float]]] | Failure:
    """Log ratios of the claimed pairs by name, one list per fresh process, each as long as its finding took; or the first failure.

    Args:
        task: the measurement that the findings are from; pairs that nothing is claimed of are left out, with their arms.
        claims: regressions and improvements by the name of their pair.
        fresh: workers in which none of the claims was found.
        ask: puts a task to a worker and answers when nothing disturbed it.
        keep: given the samples of each process, which they name by its number, from 1.
        on_process: called with the number of processes done, and that of all.
    """
    pairs = tuple(pair for pair in task.pairs if pair.name in claims)
    wanted = {arm for pair in pairs for arm in (pair.new, pair.old)}
    kernels = tuple(kernel for kernel in task.kernels if kernel in wanted)
    again = msgspec.structs.replace(
        task,
        kernels=kernels,
        baseline=kernels[0] if kernels else task.baseline,
        extra_arms=tuple(arm for arm in task.extra_arms if arm.name in wanted),
        pairs=pairs,
        looks=None,
        lengths={pair.name: placements_for(claims[pair.name]) for pair in pairs},
        seconds=None,  # a confirmation that is cut short says nothing
        digested=(),
        skip_identical=False,
    )
    logs: dict[str, list[list[float]]] = {pair.name: [] for pair in pairs}
    for number, worker in enumerate(fresh):
        on_process(number, len(fresh))
        reply = ask(msgspec.structs.replace(again, seed=random.SystemRandom().randrange(2**31)), worker)
        if isinstance(reply, Failure):
            return reply
        if refused := label_refused(reply, task.plan.trim):
            return Failure(status=Status.NOT_MEASURED, reason=f"its times are labelled cold, but {refused}")
        keep(reply.numbered(number + 1).samples)
        for pair in pairs:
            logs[pair.name].append(pair_logs(reply.samples, pair, task.plan.trim))
    return logs
