"""`fusebench ncu` for programs, and the metrics that a user named: those that no figure is made of have no other table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..counters.diff import changes
from ..counters.metric_sets import NAMED, wanted
from ..counters.records import CaptureStatus, CounterRun
from .counters_table import diff_pairs, kernel_label, readings, traffic_line

NAMED_COLUMNS = ("case", "kernel", "launch", "metric", "value")
NAMED_NUMBERS = ("value",)


def named_rows(run: CounterRun) -> list[tuple[str, ...]]:
    """A row per launch and named metric, in Nsight Compute's base units; none where a set was asked for."""
    if run.metric_set != NAMED:
        return []
    return [
        (capture.case_key, kernel_label(capture), launch.name, name, f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}")
        for capture in run.captures
        for launch in capture.launches
        for name, value in launch.metrics.items()
        if name in run.metrics or (name.rpartition(".")[0] in run.metrics and wanted(name, run.metrics))
    ]


def counters_document(run: CounterRun, folder: Path | None, exit_code: int) -> dict[str, Any]:
    """The JSON document: the record, every pair that belongs side by side with what changed, and the reading of every capture."""
    return {
        "run": str(folder) if folder is not None else None,
        "exit_code": exit_code,
        "record": run,
        "diffs": [
            {
                "case": pair.after.case_key,
                "before": kernel_label(pair.before),
                "after": kernel_label(pair.after),
                "changes": [
                    {
                        "figure": change.title, "unit": change.unit, "launch": change.launch, "before": change.before,
                        "after": change.after, "percent": change.percent, "improved": change.improved,
                    }
                    for change in changes(pair.before, pair.after)
                ],
            }
            for pair in diff_pairs(run)
        ],
        "readings": [
            {
                "case": capture.case_key, "kernel": capture.kernel, "side": capture.side,
                "sentences": readings(capture), "traffic": traffic_line(capture, run.cache_control),
            }
            for capture in run.captures
            if capture.status is CaptureStatus.CAPTURED
        ],
    }  # fmt: skip
