"""Sentences about a whole run, the same in every report: device, sampling, control arm, calibration, time spent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..schema import CacheState, CalibrationNote, Run, VisibleEffect
from ..stats.calibration import durations
from .wording import count, short_kernel

UNCALIBRATED = (
    "not calibrated on this {what}: the false-alarm rate and the smallest visible effect are unknown; measure it with `fusebench calibrate`"
)
TOO_FEW = "too few trials"
SHOWN_KERNELS = 3
"""Slowest kernels to name."""


def headline(run: Run) -> str:
    """Device, timer and cache state in one line."""
    return f"{run.environment.device_name} · {run.timer} timer · {run.plan.cache} cache"


def sampling(run: Run) -> str:
    """Replicates, rounds and the statistics behind the intervals."""
    plan = run.plan
    processes = {result.measurement.processes for result in run.results if result.measurement is not None} or {1}
    fewest, most = min(processes), max(processes)
    taken = f"{count(plan.replicates, 'replicate')} x {count(plan.rounds, 'round')}"
    if most > 1:
        taken += f" in each of {most if fewest == most else f'{fewest} to {most}'} processes"
    elif plan.replicates == 1:
        return f"{taken}, one replicate: no interval"
    units = "replicates" if most == 1 else "processes" if fewest > 1 else "processes, or one's replicates"
    return f"{taken}, {plan.trim:.0%} trimmed means, Student t interval over the {units}"


def control_line(run: Run) -> str:
    """The largest deviation of the control arm, a second copy of the baseline on its own buffers; empty without one."""
    ratios = [summary.control_ratio.value for summary in run.cases if summary.control_ratio is not None]
    if not ratios:
        return ""
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    return f"control arm (the baseline against its own second copy): at worst {worst - 1:+.2%} over {count(len(ratios), 'case')}"


def calibration_line(run: Run) -> str:
    """False-alarm rate and smallest visible effect of the run's device, or that it was not calibrated."""
    return calibration_words(run.calibration, run.environment.device, run.timer, run.plan.cache)


def calibration_words(note: CalibrationNote | None, device: str, timer: str, cache: CacheState) -> str:
    """The same for any comparison made on `device` (`cpu` or `cuda`) with that timer in that cache state."""
    what = "CPU" if device == "cpu" else "GPU"
    if note is None:
        return UNCALIBRATED.format(what=what)
    if (note.timer, note.cache) != (timer, cache):
        return (
            f"not calibrated on this {what} with timer {timer} and {cache} cache, but with {note.timer} and {note.cache} ({note.created})"
        )
    high = f"95 % interval up to {note.false_regression_high:.2%}"
    alarms = f"{note.false_regressions} of {note.comparisons} A/A comparisons called slower ({high})"
    return f"calibration of paired comparisons on {note.device_name}, {note.created}: {alarms}{_seen(note.effects)}"


def smallest_words(effect: VisibleEffect) -> str:
    """`2.01%`; `more than 5.00%` where even the largest injected slowdown was missed; `too few trials` where none was tried enough."""
    if effect.smallest is not None:
        return f"{effect.smallest:.2%}"
    return f"more than {effect.largest_planted:.2%}" if effect.largest_planted else TOO_FEW


def _seen(effects: Sequence[VisibleEffect]) -> str:
    """The smallest visible effects.  One launch and several launches are told apart only where both exist: some timers see no launches,
    and older records hold none."""
    if not effects:
        return ""
    one = [effect for effect in effects if not effect.several_launches]
    several = [effect for effect in effects if effect.several_launches]
    parts = [(" in calls of one launch", one), (" in calls of several launches", several)] if several else [("", one)]
    return "; smallest slowdown found with 95 % probability" + ";".join(f"{calls}: {_by_duration(some)}" for calls, some in parts if some)


def _by_duration(effects: Sequence[VisibleEffect]) -> str:
    return ", ".join(f"{durations(effect.low_us, effect.high_us)}: {smallest_words(effect)}" for effect in effects)


def spending_lines(run: Run) -> list[str]:
    """Phases of the run by what they took, the rest by itself, and the kernels that took most; empty for records that lack it."""
    spending = run.spending
    if spending is None:
        return []
    rest = spending.total_s - sum(spending.phases_s.values())
    parts = [f"{name} {seconds:.1f} s" for name, seconds in [*spending.phases_s.items(), ("the rest", rest)] if seconds >= 0.05]
    lines = [f"time spent: {spending.total_s:.1f} s" + (f" ({', '.join(parts)})" if parts else "")]
    kernels = sorted(spending.kernels_s.items(), key=lambda item: -item[1])[:SHOWN_KERNELS]
    slow = [f"{short_kernel(name)} of {name.split('/', maxsplit=1)[0]} {seconds:.1f} s" for name, seconds in kernels if seconds >= 1]
    if slow:
        lines.append(f"slowest to check and compile: {', '.join(slow)}")
    return lines
