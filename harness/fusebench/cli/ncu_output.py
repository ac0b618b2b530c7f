"""How `fusebench ncu` prints a run, just made or stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..schema import ExitCode

if TYPE_CHECKING:
    from ..counters.records import CounterRun


def show(record: CounterRun, written: Path | None, code: ExitCode, *, json: bool) -> None:
    """Print the run: one JSON document, or tables and the reading in words.  `written`: its folder, where it was just written."""
    from ..report.counters_markdown import counters_document
    from .output import print_json

    if json:
        print_json(counters_document(record, written, code))
        return
    _print(record)
    if written is not None:
        typer.echo(f"run: {written}")


def _print(record: CounterRun) -> None:
    """Print every capture, named metrics, tables of head beside base, every figure of a single case, and the reading in words."""
    from ..counters.records import CaptureStatus
    from ..report.counters_markdown import NAMED_COLUMNS, NAMED_NUMBERS, named_rows
    from ..report.counters_table import (
        CAPTURE_COLUMNS,
        CAPTURE_NUMBERS,
        capture_rows,
        captures_in_full,
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
    from .output import print_table, remark

    for warning in record.warnings:
        remark("warning", warning)
    print_table(CAPTURE_COLUMNS, capture_rows(record), right=CAPTURE_NUMBERS)
    named = named_rows(record)
    if named:
        print_table(NAMED_COLUMNS, named, right=NAMED_NUMBERS)
    for pair in diff_pairs(record):
        columns = diff_columns(pair.before, pair.after)
        print_table(columns, diff_rows(pair.before, pair.after), title=diff_title(pair.before, pair.after), right=columns[1:])
    alone = captures_in_full(record)
    if alone:
        columns = figure_columns(alone)
        print_table(columns, figure_rows(alone), title=f"{alone[0].case_key} ({alone[0].shape})", right=columns[1:])
    for capture in record.captures:
        if capture.status is CaptureStatus.CAPTURED:
            said = [line for line in (*readings(capture), traffic_line(capture, record.cache_control)) if line]
            typer.echo(f"{kernel_label(capture)} on {capture.case_key}:" + "".join(f"\n  {line}" for line in said or ["no rule applies"]))
    if record.base:
        typer.echo(f"base: {record.base}")
