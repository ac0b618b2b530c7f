"""`fusebench ncu`: hardware counters of chosen kernels and cases, and version beside version."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..schema import CacheState, ExitCode
from .ab_command import BaseKernelsOption, BaseOption, ExactOption, ResumeOption
from .shared.measuring_options import OutOption, WaitOption
from .shared.options import CaseOption, DeviceOption, JsonOption, KernelOption, KernelsOption, OpOption, SuiteOption, TimeoutOption
from .shared.output import command_line, say_what_is_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..counters.records import CounterRun


class SetName(StrEnum):
    """The sets of `counters.metric_sets`, spelled here so that `--help` imports nothing of them."""

    QUICK = "quick"
    MEMORY = "memory"
    FULL = "full"


SetOption = Annotated[
    SetName | None,
    typer.Option(
        "--set",
        help="What is read: `quick` (time, occupancy, instructions, memory traffic), `memory` (and the caches), `full` (and stall reasons; "
        "the report opens complete in Nsight Compute's viewer).  `full` unless --metrics names some.",
        show_default=False,
    ),
]
MetricsOption = Annotated[
    list[str] | None,
    typer.Option("--metrics", metavar="NAME[,NAME…]", help="These of Nsight Compute's metrics instead of a set; repeatable."),
]
CacheOption = Annotated[
    CacheState,
    typer.Option("--cache", help="`cold`: Nsight Compute flushes the caches before every pass over a launch; `warm`: it leaves them."),
]
AgainstOption = Annotated[
    str | None,
    typer.Option("--against", metavar="RUN", help="Put an earlier `fusebench ncu` beside this one: a folder, an id or `latest`."),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN|REPORT",
        help="Capture nothing and show a stored run (a folder, an id or `latest`), or one .ncu-rep of it.  With --set or --metrics the "
        "values are read again from its reports, which hold more than the record.",
    ),
]


def ncu(
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    kernel: KernelOption = None,
    case: CaseOption = None,
    metric_set: SetOption = None,
    metrics: MetricsOption = None,
    cache: CacheOption = CacheState.COLD,
    base: BaseOption = None,
    exact: ExactOption = False,
    base_kernels: BaseKernelsOption = None,
    against: AgainstOption = None,
    stored: FromOption = None,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    wait: WaitOption = 0.0,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Read hardware counters with Nsight Compute: one call of every chosen kernel on every chosen case.

    Without --kernel these are the project's own fused kernels and split chains in Triton and CUDA C++; others are captured when they are
    named.  Versions of a kernel are shown side by side, and with --base, --base-kernels or --against the same kernel of head and base.

    Examples:

      fusebench ncu --suite qknorm_rope --case flux_1024

      fusebench ncu --kernel 'norm_scale_shift_gate_select01/fused_triton@*'

      fusebench ncu --suite qknorm_rope --case flux_1024 --kernel fused_triton --base main

      fusebench ncu --from latest --metrics lts__t_requests.sum

    The run's folder, which ends in _ncu, holds ncu.json, report.md and a .ncu-rep for Nsight Compute's viewer per kernel and case.

    Exit codes: 0 all captured; 3 counters cannot be read here (with the remedy), or the device is busy; 5 a kernel failed.
    """
    set_name, names = _what_to_read(metric_set, metrics)
    if sum(given is not None for given in (base, base_kernels, against)) > 1:
        raise UsageError("--base, --base-kernels and --against each name a base to compare with; pass one of them")
    if stored is not None:
        _show_stored(stored, against, (set_name, names), anew=metric_set is not None or metrics is not None, json=json)
        return

    from ..device.select import require_spec
    from .shared.selection import resolve_selection, with_kernels

    if not suite and op is None and kernel is not None and all("/" in glob for glob in kernel.split(",")):
        op = ",".join(
            dict.fromkeys(glob.partition("/")[0] for glob in kernel.split(","))
        )  # `op/name@version` says which op, and so which suite
    require_spec(device)
    selection = resolve_selection(suite=suite, op=op, kernel=kernel, case=case, kernels=kernels, load_kernels=False)

    from ..runner.count.stored import find_counters, read_sealed_counters
    from ..runner.evidence.base_checkout import BaseChoice

    choice = BaseChoice(ref=base, exact=exact, folder=base_kernels) if base is not None or base_kernels is not None else None
    if choice is not None:
        choice.require(selection.project)
    earlier = read_sealed_counters(find_counters(against, selection.project)) if against is not None else None

    from ..runner.count.command import CountRequest, measure_counters
    from ..runner.count.device import look_for_device
    from .shared.progress import make_reporter

    looked = look_for_device(device)
    selection = with_kernels(selection, narrow=True, silence_s=kernel_timeout)
    request = CountRequest(
        project=selection.project,
        collection=selection.collection,
        cases=selection.cases,
        kernel=selection.kernel,
        exact_kernel=selection.exact_kernel,
        base=choice,
        earlier=earlier,
        fit=looked.result(),
        metric_set=set_name,
        metrics=names,
        named=metrics is not None,
        cache=cache,
        silence_s=kernel_timeout,
        wait_s=wait,
        out=out,
        resume=resume,
        command=command_line(),
    )
    outcome = measure_counters(request, make_reporter())
    if outcome.folder is not None:
        _write_report(outcome.record, outcome.folder)
    if outcome.interruption is not None:
        say_what_is_kept(outcome, resume=not outcome.record.complete)
        raise outcome.interruption
    _show(outcome.record, outcome.folder, outcome.exit_code, json=json)
    raise typer.Exit(outcome.exit_code)


def _write_report(record: CounterRun, folder: Path) -> None:
    from ..report.evidence.counters_markdown import counters_markdown
    from ..store.comparison_folder import write_report

    write_report(folder, counters_markdown(record))


def _show_stored(text: str, against: str | None, what: tuple[str, tuple[str, ...]], *, anew: bool, json: bool) -> None:
    from ..config import find_project
    from ..runner.count.stored import put_beside, stored_run

    project = find_project()
    _show(put_beside(stored_run(text, project, what, anew=anew), against, project), None, ExitCode.PASS, json=json)


def _what_to_read(metric_set: SetName | None, metrics: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    """The set's name and its metrics."""
    from ..counters.metric_sets import NAMED, SETS, MetricSet, split_names

    if metrics is not None:
        if metric_set is not None:
            raise UsageError(f"--set {metric_set} and --metrics: pass one of them; a set is a list of metrics itself")
        return NAMED, split_names(metrics)
    chosen = MetricSet(metric_set or SetName.FULL)
    return chosen.value, SETS[chosen]


def _show(record: CounterRun, written: Path | None, code: ExitCode, *, json: bool) -> None:
    """Print the run: one JSON document, or tables and the reading in words.  `written`: its folder, where it was just written."""
    from ..report.evidence.counters_markdown import counters_document
    from .shared.output import print_json

    if json:
        print_json(counters_document(record, written, code))
        return
    _print(record)
    if written is not None:
        typer.echo(f"run: {written}")


def _print(record: CounterRun) -> None:
    """Print every capture, named metrics, tables of head beside base, every figure of a single case, and the reading in words."""
    from ..counters.records import CaptureStatus
    from ..report.evidence.counters_markdown import NAMED_COLUMNS, NAMED_NUMBERS, named_rows
    from ..report.evidence.counters_table import (
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
    from .shared.output import print_table, remark

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
