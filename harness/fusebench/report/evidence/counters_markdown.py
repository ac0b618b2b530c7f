"""Counter runs as Markdown (report.md of `fusebench ncu`) and as JSON: figures, readings and comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...counters.diff import changes
from ...counters.metric_sets import NAMED, wanted
from ...counters.records import Capture, CaptureStatus, CounterRun
from .. import escape
from ..run.markdown import environment_table, markdown_table
from ..wording import count
from .counters_table import (
    CAPTURE_COLUMNS,
    capture_rows,
    diff_columns,
    diff_pairs,
    diff_rows,
    diff_title,
    figure_columns,
    figure_rows,
    kernel_label,
    readings,
    traffic_line,
)

_RIGHT_FROM = 2


def counters_markdown(run: CounterRun) -> str:
    """The report as GitHub-flavoured Markdown."""
    run = escape.cleaned(run)
    title = escape.markdown(f"Counters · {run.environment.device_name} · Nsight Compute {run.ncu_version}")
    parts = [f"# {title}", "", *(f"> {notice}" for notice in _notices(run))]
    parts += ["", *environment_table(run), *([f"| base | {escape.cell(run.base)} |"] if run.base else []), ""]
    parts += ["## Kernels", "", *markdown_table(CAPTURE_COLUMNS, capture_rows(run), _RIGHT_FROM), ""]
    if named := named_rows(run):
        parts += ["## Named metrics", "", *markdown_table(NAMED_COLUMNS, named, len(NAMED_COLUMNS) - 1), ""]
    for pair in diff_pairs(run):
        header = diff_columns(pair.before, pair.after)
        title = escape.markdown(diff_title(pair.before, pair.after))
        parts += [f"## {title}", "", *markdown_table(header, diff_rows(pair.before, pair.after)), ""]
    parts += [*_readings(run), *_everything(run), *_method(run)]
    return "\n".join(parts).replace("\n\n\n", "\n\n").rstrip() + "\n"


def _notices(run: CounterRun) -> list[str]:
    found = [] if run.complete else ["**Incomplete run**: not every kernel was captured."]
    return found + [f"Warning: {escape.markdown(warning)}" for warning in run.warnings]


def _readings(run: CounterRun) -> list[str]:
    lines = ["## Reading", ""]
    for capture in _captured(run):
        said = [line for line in (*readings(capture), traffic_line(capture, run.cache_control)) if line]
        lines += [f"{escape.code(kernel_label(capture))} on {escape.markdown(capture.case_key)}:", ""]
        lines += [*(f"* {escape.markdown(line)}" for line in said or ["no rule applies"]), ""]
    return lines if len(lines) > 2 else []


def _everything(run: CounterRun) -> list[str]:
    """Every figure of every kernel, case by case."""
    lines = []
    for case in dict.fromkeys(capture.case_key for capture in _captured(run)):
        captures = [capture for capture in _captured(run) if capture.case_key == case]
        lines += [
            escape.markdown(f"{case} ({captures[0].shape}):"),
            "",
            *markdown_table(figure_columns(captures), figure_rows(captures)),
            "",
        ]
    if not lines:
        return []
    return ["<details>", "<summary>Every figure</summary>", "", *lines, "</details>", ""]


def _method(run: CounterRun) -> list[str]:
    caches = "flushed before every pass" if run.cache_control == "all" else f"as they were (cache control {run.cache_control})"
    return [
        "## How this was counted",
        "",
        f"* metric set {escape.markdown(run.metric_set)}, {count(len(run.metrics), 'metric')}; "
        "a figure that was not collected is not shown",
        f"* caches {escape.markdown(caches)}; clocks: control {escape.markdown(run.clock_control)}",
        "* counters are collected in several passes over the same launch, so times here are not those of `fusebench run`",
        "* moved/min: bytes read from DRAM and stored, per byte that the op must read and write",
        "",
        "To reproduce:",
        "",
        *escape.code_block(run.command),
        "",
    ]


def _captured(run: CounterRun) -> list[Capture]:
    return [capture for capture in run.captures if capture.status is CaptureStatus.CAPTURED]


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
                "case": capture.case_key, "kernel": capture.kernel, "side": capture.revision,
                "sentences": readings(capture), "traffic": traffic_line(capture, run.cache_control),
            }
            for capture in run.captures
            if capture.status is CaptureStatus.CAPTURED
        ],
    }  # fmt: skip
