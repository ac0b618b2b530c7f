"""What every report says of the verdicts themselves: how often they are wrong, and what they can see."""

from __future__ import annotations

from collections.abc import Sequence

from ..schema import CacheState, CalibrationNote, Run, VisibleEffect
from ..stats.calibration import durations

UNCALIBRATED = (
    "not calibrated on this {what}: how often a verdict is wrong here, and what it can see, is unknown; "
    "measure it with `fusebench calibrate`"
)
TOO_FEW = "too few trials"


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
    alarms = (
        f"{note.false_regressions} of {note.comparisons} equal kernels called slower (95 % interval up to {note.false_regression_high:.2%})"
    )
    return f"calibration of paired comparisons on {note.device_name}, {note.created}: {alarms}{_seen(note.effects)}"


def smallest_words(effect: VisibleEffect) -> str:
    """`2.01%`, `more than 5.00%` where no slowdown that was planted often enough was found, or `too few trials` where none was."""
    if effect.smallest is not None:
        return f"{effect.smallest:.2%}"
    return f"more than {effect.largest_planted:.2%}" if effect.largest_planted else TOO_FEW


def _seen(effects: Sequence[VisibleEffect]) -> str:
    """What the comparisons could see.  Calls of one launch are named as such only beside calls of several: a timer that sees no launches,
    and older records, tell none apart."""
    if not effects:
        return ""
    one = [effect for effect in effects if not effect.several_launches]
    several = [effect for effect in effects if effect.several_launches]
    parts = [(" in calls of one launch", one), (" in calls of several launches", several)] if several else [("", one)]
    return "; smallest slowdown found with 95 % probability" + ";".join(f"{calls}: {_by_duration(some)}" for calls, some in parts if some)


def _by_duration(effects: Sequence[VisibleEffect]) -> str:
    return ", ".join(f"{durations(effect.low_us, effect.high_us)}: {smallest_words(effect)}" for effect in effects)
