"""How a suspect is remeasured: after how many fresh processes to look, and how long all of it may take.

A look may end a case early only because it passes.  Whether it is slower is asked once, of what is measured at the end.  So looking often
makes no false alarm; false passes are bounded by `LOOKS_PASS_LEVEL` (docs/statistics.md).
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from ...schema import CaseSummary, Result, Sample, SamplingPlan, Status
from ..engine import Budget
from ..workers.protocol import Measured
from .precision import LOOKS

PROCESSES = LOOKS[0]
"""Fresh processes that remeasure a suspect at most: the smallest number whose interval has its nominal coverage, as for a precision."""
EARLY_LOOKS = (2, 4)
"""Earlier looks, where the scatter between processes is known from stored runs.  Without it an interval knows nothing of other processes
until there are eight."""
FRESH_REPLICATES = 8
"""Placements of a fresh process, at least: what a process takes before its first round is as long as some six of its placements."""
LEAST_S = 200.0
"""Seconds that confirmation may take in a run without a budget, at least, and the share of what the run took before."""
SHARE = 0.5


def fresh_looks(first: int, *, scatter_known: bool) -> tuple[int, ...]:
    """The numbers of fresh processes after which to look, for a case that `first` processes measured at first.

    A case of a precision gets as many fresh processes as it had.
    """
    most = max(PROCESSES, first)
    return (*EARLY_LOOKS, most) if scatter_known and first < PROCESSES else (most,)


def first_processes(results: Iterable[Result], samples: Iterable[Sample]) -> int:
    """Processes that measured a case at first: all that its samples name, less those that remeasured it."""
    every = 1 + max((one.process for one in samples), default=0)
    timed = (one.measurement for one in results if one.measurement is not None)
    return every - max((one.processes for one in timed if one.looks > 1), default=0)


def confirming_plan(plan: SamplingPlan) -> SamplingPlan:
    """The plan of a fresh process."""
    return msgspec.structs.replace(plan, replicates=max(plan.replicates, FRESH_REPLICATES))


def confirming_budget(budget: Budget, spent_s: float) -> Budget:
    """The budget of confirmation: the rest of the run's, and in a run without one a share of the seconds spent."""
    if budget.seconds is not None:
        return budget
    return Budget(max(LEAST_S, SHARE * spent_s))


def replies_of(summary: CaseSummary, samples: Iterable[Sample], first: int) -> list[Measured]:
    """The answers of the fresh processes of a resumed case, as far as its record tells them.

    Args:
        samples: all of the case.
        first: processes that measured it at first; theirs do not count.
    """
    by_process: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.process >= first:
            by_process.setdefault(sample.process, []).append(sample)
    return [
        Measured(
            samples=found,
            host_us={},
            extra_memory_bytes={},
            timer="",
            timer_fallback="",
            warm_up={},
            seconds=0.0,
            cut_short=False,
            timer_retries=0,
            stream_shape=summary.stream_shape,
            floor=summary.floor,
        )
        for _, found in sorted(by_process.items())
    ]


def timed_again(results: Iterable[Result], again: Container[str], device: str) -> list[Result]:
    """The results to time in fresh processes on a `device`, `cuda` or `cpu`: those of the kernels that get new figures.

    On a CPU every timed kernel of the case is beside them: unchanged chains of torch operations read 4 to 10 % less without those of
    torch.compile (probably the core's clock, which code with wide vectors lowers).
    """
    return [one for one in results if one.status is Status.MEASURED and (device == "cpu" or one.kernel in again)]


def remeasured(results: Iterable[Result]) -> tuple[str, ...]:
    """The kernels of a case whose times are of fresh processes."""
    return tuple(one.kernel for one in results if one.measurement is not None and one.measurement.looks > 1)
