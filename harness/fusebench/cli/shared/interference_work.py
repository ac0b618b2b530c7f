"""`fusebench calibrate --device all`: whether the boards of this host disturb each other."""

from __future__ import annotations

from pathlib import Path

import typer

from ...errors import UsageError
from ...schema import CacheState
from .options import option_names
from .output import print_json

SUITE = "calibration"
TAKEN = {"suite", "op", "kernel", "case", "device", "kernels", "cache", "timer", "budget", "wait", "kernel_timeout", "json"}
"""The options of `calibrate` that mean something for several boards."""


def show_interference(
    context: typer.Context,
    device: str,
    *,
    suite: list[str] | None,
    op: str | None,
    kernel: str | None,
    case: str | None,
    kernels: list[Path] | None,
    json: bool,
) -> None:
    """Measure, store and print it.

    Raises:
        UsageError: an option that calibrates one device, or as `measure_interference`.
    """
    from ...config import find_project
    from ...device.boards import resolve_boards
    from ...device.toolchain import require_torch_for
    from ...fleet.interference import interference_lines, measure_interference
    from ...runner.run.command import RunRequest
    from ...runner.run.options import RunOptions, default_plan
    from ...suites import suite_names
    from ...verdict.margins.rule import MarginRule
    from .progress import make_reporter
    from .selection import resolve_selection

    if given := [name for name in option_names(context) if name not in TAKEN]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--device {device} measures what the boards do to each other, so {options} cannot stand beside it; leave it out")
    boards = resolve_boards(device)
    require_torch_for(boards[0])
    default = SUITE if boards[0].kind == "cuda" else "smoke"
    if suite is None and op is None and default in suite_names(find_project()):
        suite = [default]
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels)
    values = context.params
    kind = boards[0].kind
    request = RunRequest(
        project=selection.project,
        collection=selection.collection,
        cases=selection.cases,
        device=boards[0],
        timer=values["timer"],
        plan=default_plan(kind, values["cache"] or (CacheState.COLD if kind == "cuda" else CacheState.WARM)),
        options=RunOptions(kernel=kernel),
        rule=MarginRule(),
        budget_s=values["budget"],
        wait_s=values["wait"],
        silence_s=values["kernel_timeout"],
    )
    record, file = measure_interference(request, boards, make_reporter())
    if json:
        print_json(record)
    else:
        typer.echo("\n".join(interference_lines(record)))
        typer.echo(f"interference: {file}")
