"""The report of `fusebench calibrate`: false-alarm rate, detection of injected slowdowns, sources of scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..runner.calibrate.summary import claim_of
from ..runner.calibrate.targets import OWN_OP
from ..schema import GroundTruth
from ..stats.rates import Rate
from ..store.calibrations import CalibrationRecord, CaseComponents
from ..verdict.calibration import Calibration, ClassSummary
from . import escape
from .run.document import finite
from .run.markdown import markdown_table
from .run.summary import TOO_FEW, TOO_FEW_CASES, calibration_words, smallest_words
from .wording import DASH

CLASS_HEADER = (
    "duration",
    "A/A comparisons",
    "called slower",
    "called faster",
    "undecided",
    "smallest found",
    "95 % found at",
    "replicates",
)
TRUTH_HEADER = ("kernel", "case", "injected by", "nominal", "measured", "us")
SCATTER_HEADER = ("kernel", "case", "us", "rounds", "placements", "processes", "one replicate")


def calibration_report(record: CalibrationRecord, summary: Calibration) -> str:
    """The whole calibration as Markdown, which is also what the terminal shows."""
    record, summary = escape.cleaned(record), escape.cleaned(summary)
    plan, looks = record.sampling, record.looks
    words = calibration_words(record.note, record.environment.device, record.timer, record.cache)
    parts = [
        f"# Calibration of {escape.markdown(record.environment.device_name)}",
        "",
        f"{escape.markdown(words)}.",
        "",
        f"timer {escape.markdown(record.timer)}, {record.cache} cache, {plan.rounds} rounds a replicate, looks after "
        f"{', '.join(map(str, looks.looks))} replicates, margin {100 * looks.margin:.1f} % and at least {looks.floor_us:g} us, "
        f"{record.processes} fresh processes confirm; "
        f"{len(record.trials)} comparisons in {len(record.sessions)} session{'s' if len(record.sessions) > 1 else ''}, "
        f"the last on {escape.markdown(record.sessions[-1])}.",
        "",
        _coverage(record),
        "",
        "## By duration of the call, and whether it makes one launch or several",
        "",
        *markdown_table(CLASS_HEADER, [_class_row(one) for one in summary.classes]),
        "",
        *_found(summary.classes),
        "## Ground truth: the measured size of each injected slowdown",
        "",
        *markdown_table(TRUTH_HEADER, [_truth_row(one) for one in record.ground_truths], right_from=3),
        "",
        "## Sources of scatter (standard deviation of the log ratio in A/A comparisons)",
        "",
        *markdown_table(SCATTER_HEADER, [_scatter_row(one) for one in record.components], right_from=2),
    ]
    if record.warnings:
        parts += ["", *(f"* {escape.markdown(warning)}" for warning in record.warnings)]
    return "\n".join(parts).rstrip() + "\n"


def calibration_document(record: CalibrationRecord, summary: Calibration, file: str) -> dict[str, Any]:
    """The one JSON document of `fusebench calibrate --json`."""
    return {
        "file": file,
        "device": record.environment.device_name,
        "timer": record.timer,
        "cache": str(record.cache),
        "comparisons": record.note.comparisons,
        "false_regressions": record.note.false_regressions,
        "false_regression_high": record.note.false_regression_high,
        "classes": [
            {
                "low_us": one.low_us,
                "high_us": finite(one.high_us),
                "several_launches": one.several_launches,
                "comparisons": one.false_regressions.total,
                "false_regressions": one.false_regressions.count,
                "undecided": one.undecided.count,
                "found": [
                    {"planted": size, "count": rate.count, "total": rate.total, "low": one.least_found[size]}
                    for size, rate in one.found.items()
                ],
                "smallest_found": one.smallest_found,
            }
            for one in summary.classes
        ],
        "warnings": list(record.warnings),
    }


def _coverage(record: CalibrationRecord) -> str:
    """The share of real kernels among the A/A comparisons, and how many there are."""
    equal = [trial.place for trial in record.trials if trial.place.nominal == 0]
    real = [place for place in equal if not place.kernel.startswith(f"{OWN_OP}/")]
    if not real:
        return "All comparisons are of fusebench's own kernels."
    ops = {place.kernel.partition("/")[0] for place in real}
    kernels, cases = {place.kernel for place in real}, {(place.kernel, place.case) for place in real}
    return (
        f"{100 * (len(real) / len(equal)):.0f} % of the A/A comparisons are of real kernels: {len(kernels)} kernels of {len(ops)} ops, "
        f"{len(cases)} kernels and cases. The others are of fusebench's own."
    )


def _class_row(one: ClassSummary) -> list[str]:
    return [
        one.name,
        str(one.false_regressions.total),
        _rate(one.false_regressions),
        _rate(one.false_improvements),
        _rate(one.undecided),
        smallest_words(claim_of(one)),
        _visible(one),
        DASH if math.isnan(one.median_replicates) else f"{one.median_replicates:g}",
    ]


def _found(classes: Sequence[ClassSummary]) -> list[str]:
    rows = [
        [
            one.name,
            f"{100 * size:.2f} %",
            f"{rate.count} of {rate.total}",
            _clusters(rate),
            f"{100 * one.least_found[size]:.1f} %",
            _rate(one.passed[size]),
        ]
        for one in classes
        for size, rate in one.found.items()
    ]
    header = ("duration", "injected slowdown", "found", "cases", "found at least", "passed")
    return [*markdown_table(header, rows), ""] if rows else []


def _clusters(rate: Rate) -> str:
    return str(rate.total if rate.clusters is None else rate.clusters)


def _rate(rate: Rate) -> str:
    if not rate.total:
        return DASH
    bound = TOO_FEW_CASES if rate.effective is not None and rate.effective <= 1 else f"up to {100 * rate.high:.2f} %"
    return f"{rate.count} of {rate.total} ({bound})"


def _visible(one: ClassSummary) -> str:
    if one.largest_tried is None:
        return TOO_FEW
    return DASH if one.visible is None else f"{100 * one.visible:.2f} %"


def _truth_row(one: GroundTruth) -> list[str]:
    change = one.change
    seen = f"{100 * (change.value - 1):+.2f} % [{100 * (change.low - 1):+.2f} %, {100 * (change.high - 1):+.2f} %]"
    return [one.place.kernel, one.place.case, str(one.place.injection), f"{100 * one.place.nominal:.2f} %", seen, f"{one.time_us:.2f}"]


def _scatter_row(one: CaseComponents) -> list[str]:
    found = one.components
    processes = DASH if found.processes is None else f"{100 * found.processes:.2f} %"
    shares = [f"{100 * found.rounds:.2f} %", f"{100 * found.placements:.2f} %", processes, f"{100 * found.replicate:.2f} %"]
    return [one.kernel, one.case, f"{one.time_us:.2f}", *shares]
