"""The one JSON document that `fusebench run --json` prints; its format is versioned in docs/schema.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from ...schema import Estimate, Result, Run, SuiteSummary
from ...verdict.dispatch_choice import dispatch_ratios
from ...verdict.margins.words import own_coverage
from ..evidence.attached import evidence_row
from ..wording import part_label
from .summary import calibration_line


def run_document(run: Run, folder: Path | None) -> dict[str, Any]:
    """The run as plain JSON values: floats are finite or None, estimates are split into value and [low, high]."""
    ratios = {(one.case, one.kernel): one.ratio for one in dispatch_ratios(run)}
    return {
        "run": str(folder) if folder is not None else None,
        "schema_version": run.schema_version,
        "device": run.environment.device_name,
        "timer": run.timer,
        "exit_code": int(run.exit_code),
        "complete": run.complete,
        "weighted_speedup": {
            suite.name: {kernel: finite(value) for kernel, value in suite.weighted_speedup.items()} for suite in run.suites
        },
        "suites": [_suite(suite) for suite in run.suites],
        "warnings": list(run.warnings),
        "calibration": calibration_line(run),
        "intervals": own_coverage(run),
        "results": [_result(result, ratios.get((result.case_key, result.kernel))) for result in run.results],
    }


def _suite(suite: SuiteSummary) -> dict[str, Any]:
    figures = {key: value for key, value in msgspec.to_builtins(suite).items() if isinstance(value, dict)}
    return {"name": suite.name, "cases": suite.cases} | {key: _plain(value) for key, value in figures.items()}


def finite(value: float | None) -> float | None:
    """`value`, or None if JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


def ends(estimate: Estimate | None) -> list[float | None] | None:
    """[low, high]; an unbounded interval, which one replicate gives, is [None, None]."""
    if estimate is None:
        return None
    if estimate.low <= 0 or not math.isfinite(estimate.high):
        return [None, None]
    return [finite(estimate.low), finite(estimate.high)]


def _result(result: Result, dispatch_over_best: float | None) -> dict[str, Any]:
    timing, verdict = result.measurement, result.verdict
    return {
        "case": result.case,
        "suite": result.suite,
        "op": result.op,
        "kernel": result.kernel,
        "role": str(result.role),
        "status": str(result.status),
        "time_us": finite(timing.time_us.value) if timing else None,
        "ci_us": ends(timing.time_us) if timing else None,
        "speedup": finite(timing.speedup.value) if timing and timing.speedup else None,
        "speedup_ci": ends(timing.speedup) if timing else None,
        "sol": finite(timing.sol) if timing else None,
        "peak_share": finite(timing.peak_share) if timing else None,
        "gb_per_s": finite(timing.gb_per_s) if timing else None,
        "dispatch_over_best": finite(dispatch_over_best),
        "accuracy": _plain(msgspec.to_builtins(result.accuracy)) if result.accuracy else None,
        "verdict": str(verdict.kind) if verdict else None,
        "decides": result.gating,
        "covers": result.covers or None,
        "suspicious": result.suspicious or None,
        "reason": (verdict.reason if verdict else "") or result.reason or result.suspicious or part_label(result),
        **evidence_row(result.attachments),
    }


def _plain(value: Any) -> Any:
    """`value` of plain types as JSON holds it: lists for tuples, null for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return finite(value) if isinstance(value, float) else value
