"""GPU busy times of the variants' steps, from CUPTI's activity records, beside the wall clock's times."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ...errors import TimerError
from ...schema.models import GpuTime, StepTime
from ...timing.arm import Arm, Timer
from ..denoise import Denoising
from ..variants import SPLIT, Variant, told
from .step_timing import Step, ratio, step_time, time_rounds
from .timed_variants import step_of

if TYPE_CHECKING:
    import torch

CALLS = 2
"""Steps that the timer makes for each that it times: the first is dropped, so that clocks are those of steps in a row."""
MOST_BUDGETS = 4
"""Times its budget that one round may take; it is left out beyond."""
ON_A_CPU = "a CPU leaves no activity records of CUPTI, so step times are by wall clock alone"


class ActivityClock:
    """Times a step by its activity records, instead of by wall clock.

    Args:
        timer: `timing.timers.cupti.CuptiTimer`, or another that sees activities.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.spans_ms: defaultdict[Step, list[float]] = defaultdict(list)
        """From the first activity's start to the last one's end, of every step."""
        self.last: Step | None = None
        """The step that is timed, or failed."""

    def __call__(self, step: Step, device: torch.device) -> float:
        """Milliseconds in which at least one activity ran.

        Raises:
            TimerError: records were dropped, or belong to no step.
        """
        import torch

        def idle(arm: Arm) -> None:
            torch.cuda.synchronize(device)

        self.last = step
        (found,) = self._timer.time_calls([Arm("step", step, lambda: None)], idle)
        self.spans_ms[step].append(found.span_ns / 1e6)
        return found.busy_ns / 1e6


def with_gpu_times(
    times: Sequence[StepTime],
    variants: Sequence[Variant],
    denoising: Denoising,
    timer: Timer,
    *,
    budget_s: float,
    target: float,
    say: Callable[[str], None],
) -> tuple[tuple[StepTime, ...], str]:
    """`times` with the GPU's time of every variant, measured in rounds of their own (ABBA), and why some have none; empty where all do.

    Args:
        timer: sees activities.
        budget_s: seconds for all rounds; at least one is made, unless it would take MOST_BUDGETS times as long.
    """
    round_s = 2 * CALLS * sum(one.time_ms.value for one in times if one.time_ms is not None) / 1000
    if not round_s or round_s > MOST_BUDGETS * budget_s:
        return tuple(times), f"one round would take {round_s:.3g} s, and {budget_s:.3g} s are for all; raise --budget"
    say("GPU busy times by CUPTI")
    steps = {variant.name: step_of(variant, denoising) for variant in variants}
    found, absent = dict[str, GpuTime](), list[str]()
    while steps and not found:
        clock = ActivityClock(timer)
        before = SPLIT if SPLIT in steps else next(iter(steps))
        try:
            rounds = time_rounds(steps, device=denoising.device, budget_s=budget_s, target=target, before=before, fewest=1, timed=clock)
        except TimerError as error:  # the others are timed without it
            name = next(name for name, step in steps.items() if step is clock.last)
            del steps[name]
            absent.append(f"{name}: {told(error)}")
            continue
        found = {
            name: GpuTime(
                rounds_ms=tuple(values),
                busy_ms=step_time(values),
                span_ms=statistics.fmean(clock.spans_ms[steps[name]]),
                speedup=ratio(rounds[SPLIT], values) if before == SPLIT != name else None,
            )
            for name, values in rounds.items()
        }
    return tuple(msgspec.structs.replace(one, gpu=found.get(one.variant)) for one in times), "; ".join(absent)
