"""Sentences about a whole run, the same in every report: verdict, device, sampling, control arm, calibration, time spent."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from ...schema import (
    FAILED_STATUSES,
    CacheState,
    CalibrationNote,
    ExitCode,
    Result,
    Run,
    Status,
    VerdictKind,
    VisibleEffect,
    boards_of,
)
from ...verdict.margins.call_classes import durations
from ..wording import FEWEST_TOGETHER, absent_words, count, has_limits, short_kernel, tallied

UNCALIBRATED = (
    "not calibrated on this {what}: the false-alarm rate and the smallest visible effect are unknown; measure it with `fusebench calibrate`"
)
TOO_FEW = "too few trials"
TOO_FEW_CASES = "too few cases for a bound"
BOUND_OF_ONE = 0.975
"""Upper end of the interval of a rate from one trial that did not come out (`stats.rates`): it says nothing."""
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
    return f"{taken}, {100 * plan.trim:.0f} % trimmed means, Student t interval over the {units}"


def limit_lines(run: Run) -> list[str]:
    """What the share of SOL is taken of, and the share of the memory's peak where that is known."""
    if not has_limits(run):
        return [
            "copy, stream: the device's own copy of the case's minimum bytes; one elementwise launch over as many (in place if the op is)",
            "SOL: time of the faster of these two, in the same rounds and cache state, over the kernel's time",
        ]
    lines = [
        "SOL: the limit over the kernel's time; the limit is the time of a launch that reads and writes as many bytes as the op (in place "
        "if the op is), in the same rounds; below 10 us the floor (launch, latency and bytes over the memory's speed) where that is lower"
    ]
    if run.environment.memory_gb_per_s is not None:
        peak = f"{run.environment.memory_gb_per_s:.0f} GB/s: highest memory clock x bus width x 2, from NVML"
        lines.append(f"of peak: GB/s of the minimum bytes over the memory's peak ({peak})")
    return lines


def method_lines(run: Run) -> list[str]:
    """How a page says the run was measured: sampling, limits, the control arm, the time spent, and how reliable verdicts are."""
    control = control_line(run)
    return [
        f"{sampling(run)}; speedups are paired within a replicate",
        *limit_lines(run),
        *([control] if control else []),
        *spending_lines(run),
        calibration_line(run),
    ]


def control_line(run: Run) -> str:
    """The largest deviation of the control arm, a second copy of the baseline on its own buffers; empty without one."""
    ratios = [summary.control_ratio.value for summary in run.cases if summary.control_ratio is not None]
    if not ratios:
        return ""
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    return f"control arm (the baseline against its own second copy): at worst {100 * (worst - 1):+.2f} % over {count(len(ratios), 'case')}"


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
    known = note.false_regression_high < BOUND_OF_ONE
    high = f"95 % interval up to {100 * note.false_regression_high:.2f} %" if known else TOO_FEW_CASES
    alarms = f"{note.false_regressions} of {note.comparisons} A/A comparisons called slower ({high})"
    return f"calibration of paired comparisons on {note.device_name}, {note.created}: {alarms}{_seen(note.effects)}"


def smallest_words(effect: VisibleEffect) -> str:
    """`2.01 %`; `more than 5.00 %` where even the largest injected slowdown was missed; `too few trials` where none was tried enough."""
    if effect.smallest is not None:
        return f"{100 * effect.smallest:.2f} %"
    return f"more than {100 * effect.largest_injected:.2f} %" if effect.largest_injected else TOO_FEW


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
    """Phases of the run by what they took, the rest by itself, and the kernels that took most; empty for records that lack it.

    Boards of one run work at the same time: their phases add up to more than the run took, so there is no rest.
    """
    spending = run.spending
    if spending is None:
        return []
    boards = 1 if run.parts else len(boards_of(run.environment.device_uuid))  # of shards the total is a sum too
    phases = dict(spending.phases_s)
    if boards == 1:
        phases["the rest"] = spending.total_s - sum(phases.values())
    parts = [f"{name} {seconds:.1f} s" for name, seconds in phases.items() if seconds >= 0.05]
    by = f"{boards} boards together: " if boards > 1 else ""
    lines = [f"time spent: {spending.total_s:.1f} s" + (f" ({by}{'; '.join(parts)})" if parts else "")]
    kernels = sorted(spending.kernels_s.items(), key=lambda item: -item[1])[:SHOWN_KERNELS]
    slow = [f"{short_kernel(name)} of {name.split('/', maxsplit=1)[0]} {seconds:.1f} s" for name, seconds in kernels if seconds >= 1]
    if slow:
        lines.append(f"slowest to check and compile: {', '.join(slow)}")
    return lines


def verdict_line(run: Run) -> str:
    """The conclusion of a run, worst first: `Regression: 2 regression, 1 undecided, 27 pass; advisory: 1 regression`."""
    gating = [kind for result in run.results if result.gating and (kind := _kind(result)) is not None]
    word = "Incomplete" if not run.complete and not run.exit_code else CONCLUSIONS[ExitCode(run.exit_code)]
    if not gating:
        measured = sum(result.measurement is not None for result in run.results)
        word = word if run.exit_code or not run.complete else "Measured"
        said = f"{count(measured, 'kernel-case pair')} timed, none judged"
    else:
        passed = VerdictKind.PASS in gating or VerdictKind.IMPROVEMENT in gating
        word = word if passed or run.exit_code or not run.complete else "Not judged"
        said = tallied(gating, (*_NOTABLE, VerdictKind.PASS))
    aside = tallied((kind for result in run.results if not result.gating and (kind := _kind(result)) is not None), _NOTABLE)
    return f"{word}: {said}" + (f"; advisory: {aside}" if aside else "")


def warnings_told(run: Run) -> list[str]:
    """The run's warnings, and which suspects fresh processes remeasured: a line each, or one of four and more."""
    processes: dict[str, int] = {}
    for result in run.results:
        if result.measurement is not None and result.measurement.looks > 1:
            processes[result.case_key] = max(result.measurement.processes, processes.get(result.case_key, 0))
    why = {one.case.key: one.suspicion for one in run.cases if one.suspicion and one.case.key in processes}
    if len(why) < FEWEST_TOGETHER:
        lines = [f"case {key}: a suspect, remeasured in {processes[key]} fresh processes: {reason}" for key, reason in why.items()]
    else:
        low, high = min(processes[key] for key in why), max(processes[key] for key in why)
        some = str(high) if low == high else f"{low} to {high}"
        named = ", ".join([*why][:3])
        lines = [f"{len(why)} cases were suspects, remeasured in {some} fresh processes each: {named}, …; the record lists each"]
    return [*run.warnings, *lines]


def suspicions(run: Run) -> list[str]:
    """Suspicious times, one line each: kernel, case, evidence."""
    return [f"{one.kernel} on {one.case_key}: {one.suspicious}" for one in run.results if one.suspicious]


def reproduce(result: Result) -> str:
    """The command that measures one kernel on one case again, and judges it by the stored baseline."""
    words = ("fusebench", "run", "--suite", result.suite, "--case", result.case, "--kernel", result.kernel)
    return " ".join(map(shlex.quote, words))


def needing_attention(run: Run) -> list[tuple[VerdictKind, Result]]:
    """Results that are no pass: gating before advisory, then errors, regressions, undecided, incomparable; the largest change first."""
    found = [(kind, result) for result in run.results if (kind := _kind(result)) in _TROUBLE]
    return sorted(found, key=lambda one: (not one[1].gating, _TROUBLE.index(one[0]), -_change(one[1])))


def absent_line(run: Run) -> str:
    """One line that names the kernels which cannot run here, with the reasons; empty if all can."""
    return absent_words((result.kernel, result.reason) for result in run.results if result.status is Status.NOT_RUNNABLE)


_TROUBLE = (VerdictKind.ERROR, VerdictKind.REGRESSION, VerdictKind.UNDECIDED, VerdictKind.INCOMPARABLE)
_NOTABLE = (*_TROUBLE, VerdictKind.IMPROVEMENT)
CONCLUSIONS = {
    ExitCode.PASS: "Pass",
    ExitCode.REGRESSION: "Regression",
    ExitCode.USAGE: "Not usable",
    ExitCode.DEVICE_UNFIT: "Device not fit to measure",
    ExitCode.UNDECIDED: "Undecided",
    ExitCode.KERNEL_FAILED: "Kernel failed",
    ExitCode.FAULT: "Fault of fusebench",
}


def _kind(result: Result) -> VerdictKind | None:
    """The verdict; `error` for a kernel that failed before it could be judged."""
    if result.verdict is not None:
        return result.verdict.kind
    return VerdictKind.ERROR if result.status in FAILED_STATUSES else None


def _change(result: Result) -> float:
    change = result.verdict.change if result.verdict is not None else None
    return change.value if change is not None and math.isfinite(change.value) else 0.0
