"""`fusebench tune`: measure which kernel is fastest where, and keep it as dispatch tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import DeviceUnfitError, UsageError
from ..schema import ExitCode, worst_exit_code
from .shared.measuring_options import BudgetOption, ProcessesOption, WaitOption
from .shared.options import CaseOption, DeviceOption, JsonOption, KernelsOption, OpOption, SuiteOption, TimeoutOption
from .shared.output import command_line, say_what_is_kept

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..runner.tune import TunedOp
    from ..schema import Run
    from .shared.selection import Selection


def tune(
    *,
    suite: SuiteOption = None,
    op: OpOption = None,
    case: CaseOption = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Take the times of this run and measure nothing: a folder (also a baseline's), a run id or `latest`; repeatable.  Of "
            "equal cases the runs that timed most kernels count, by the mean of their times.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Measure and write nothing: say which times of the tables were measured with other sources than today's.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the tables' figures and write nothing.")] = False,
    device: DeviceOption = "auto",
    kernels: KernelsOption = None,
    budget: BudgetOption = None,
    wait: WaitOption = 0.0,
    processes: ProcessesOption = None,
    kernel_timeout: TimeoutOption = 300.0,
    json: JsonOption = False,
) -> None:
    """Write the tables by which `fusebench.dispatch` chooses a kernel.

    A table is of one op, one GPU model and one minor version of Triton.  It stands beside the op, in KERNELS/OP/dispatch/, and belongs
    into version control.  Without --from the fused kernels of SELECTION are checked and measured first, as `run` does.  Entries that the
    runs did not measure stay, and so do entries of more kernels than the runs timed.

    For each table the figures say how much slower than the best fused kernel dispatch is: now, with the table, and with the table for
    shapes that it lacks (each entry chosen by the others).

    Examples:

      fusebench tune --suite nightly

      fusebench tune --from results/baselines/nvidia_h200 --from results/random/nvidia_h200

      fusebench tune --op qknorm_rope --from latest --dry-run

      fusebench tune --check

    Exit codes: 0; 2 a run that makes no table; 3 the device was not fit to measure; 4 the budget ended before every case was measured, or
    --check found times of other or unknown code, or a table that cannot be read; 5 a kernel failed (a failed choice of a kernel is a
    warning); the tables of 4 and 5 are written.
    """
    if check:
        if runs or suite or case or dry_run:
            raise UsageError("--check reads the tables alone; leave out --from, --suite, --case and --dry-run")
        raise typer.Exit(_check(op, kernels, json=json))
    if runs and (suite or case):
        raise UsageError("--from takes the cases that its runs measured; leave out --suite and --case, or --from")
    from .shared.selection import resolve_selection

    code = ExitCode.PASS
    if runs:
        selection, measured, records = _read(runs, op, kernels, kernel_timeout)
    else:
        records = {}
        selection = resolve_selection(suite=suite, op=op, case=case, kernels=kernels, load_kernels=False)
        record = _measure(
            selection, op=op, case=case, device=device, processes=processes, budget_s=budget, wait_s=wait, silence_s=kernel_timeout
        )
        measured = {f"run {record.id}": record}
        code = worst_exit_code([_failed(record), ExitCode.PASS if record.complete else ExitCode.UNDECIDED])
    from ..runner.tune import tune, write_tables
    from .shared.output import print_json, remark

    wanted = op.split(",") if op is not None else ()
    here = () if runs else [one.id for one in measured.values()]
    tuned = tune(measured, selection.collection, selection.project, wanted, records, measured_here=here)
    for one in tuned:
        for text in one.remarks:
            remark("warning", text)
    if not dry_run:
        write_tables(tuned)
    if json:
        print_json({"written": not dry_run, "exit_code": int(code), "tables": [_row(one) for one in tuned]})
    else:
        _print(tuned, written=not dry_run)
    raise typer.Exit(code)


def _read(
    runs: Sequence[str], op: str | None, kernels: list[Path] | None, silence_s: float
) -> tuple[Selection, dict[str, Run], dict[str, str]]:
    """The project with its kernels, the runs that `--from` names, and by run id the folders of those that the project keeps."""
    from ..store.finding import find_run
    from ..store.run_folder import read_run
    from ..verdict.record_validation import require_valid
    from .shared.seals import require_unaltered
    from .shared.selection import Selection, load_project, with_kernels

    project, ops = load_project(kernels, load_kernels=False)
    for name in op.split(",") if op is not None else ():
        ops.op(name)
    folders = {name: find_run(name, project) for name in runs}
    found = {name: read_run(folder) for name, folder in folders.items()}
    for run in found.values():
        require_valid(run)
    require_unaltered({folders[name]: ("run", run) for name, run in found.items()}, allowed=False)
    kept = {name: folder.resolve() for name, folder in folders.items()}
    records = {
        found[name].id: folder.relative_to(project.root).as_posix()
        for name, folder in kept.items()
        if folder.is_relative_to(project.root) and not folder.is_relative_to(project.results / "runs")
    }
    # No case of a suite: the runs bring their own cases.
    return with_kernels(Selection(project, ops, (), (), None), silence_s=silence_s), found, records


def _check(op: str | None, kernels: list[Path] | None, *, json: bool) -> ExitCode:
    """Print which times of the tables were measured with other code."""
    from ..registry.dispatching.other_code import check_tables
    from .shared.output import print_json, print_table, remark
    from .shared.selection import load_project

    _, ops = load_project(kernels, load_kernels=False)
    for name in op.split(",") if op is not None else ():
        ops.op(name)
    wanted = [name for name in ops.ops if op is None or name in op.split(",")]
    checked = check_tables(wanted, ops.roots)
    for one in checked:
        if one.refused:
            remark("warning", f"{one.file}: {one.refused}")
    found = [(one.op, measured) for one in checked for measured in one.kernels]
    current = not any(one.refused for one in checked) and not any(measured.other or measured.unknown for _, measured in found)
    code = ExitCode.PASS if current else ExitCode.UNDECIDED
    if json:
        rows = [{"op": name, **measured._asdict(), "runs": list(measured.runs)} for name, measured in found]
        refused = {str(one.file): one.refused for one in checked if one.refused}
        print_json({"exit_code": int(code), "kernels": rows, "refused": refused})
    else:
        rows_ = [[name, one.kernel, str(one.entries), str(one.other), str(one.unknown), ", ".join(one.runs)] for name, one in found]
        head = ["op", "kernel", "entries", "measured with other code", "code unknown", "runs of other code"]
        print_table(head, rows_, title="entries of the dispatch tables by the source of the kernel")
    return code


def _measure(
    selection: Selection,
    *,
    op: str | None,
    case: str | None,
    device: str,
    processes: int | None,
    budget_s: float | None,
    wait_s: float,
    silence_s: float,
) -> Run:
    """Measure the fused kernels of the selection, and their baselines.

    Args:
        selection: gets its kernels.
        wait_s: seconds to wait for a busy device.
        silence_s: seconds without progress after which a kernel counts as hung.
    """
    from ..device import resolve_device
    from ..device.toolchain import require_torch_for
    from .shared.selection import with_kernels

    target = resolve_device(device)
    if target.kind != "cuda":
        raise UsageError(f"dispatch tables are for GPUs, and this is {target}; measure on one, or name a run of one with --from RUN")
    require_torch_for(target)
    import msgspec

    from ..report.run.pages import write_views
    from ..runner.run.command import RunRequest, measure_run
    from ..runner.run.options import RunOptions, default_plan
    from ..schema import Role
    from ..store.scatter_file import load_scatter
    from ..verdict.margins.rule import MarginRule
    from .shared.output import remark
    from .shared.progress import make_reporter

    selection = with_kernels(selection, silence_s=silence_s)
    fused = [name for name, one in selection.collection.kernels.items() if one.role is Role.FUSED and one.id.op in selection.ops]
    if not fused:
        raise UsageError(f"no fused kernel of {', '.join(sorted(selection.ops))} is declared, so there is nothing to choose from")
    plan = default_plan(target.kind)
    request = RunRequest(
        project=selection.project,
        collection=selection.collection,
        cases=selection.cases,
        device=target,
        timer="auto",
        plan=plan if processes is None else msgspec.structs.replace(plan, processes=processes),
        options=RunOptions(
            kernel=",".join(fused), command=command_line(), selected=tuple(one.name for one in selection.suites), op=op, case=case
        ),
        rule=MarginRule(None, scatter=load_scatter(selection.project.results, target.name), device=target.kind),
        budget_s=budget_s,
        wait_s=wait_s,
        silence_s=silence_s,
        confirm=False,
        evidence=None,
    )
    outcome = measure_run(request, make_reporter())
    if outcome.folder is not None:
        write_views(outcome.record, outcome.folder)
    if outcome.interruption is not None:
        say_what_is_kept(outcome)
        raise outcome.interruption
    remark("note", f"measured in {outcome.folder}")
    if outcome.record.exit_code == ExitCode.DEVICE_UNFIT:
        raise DeviceUnfitError(f"run {outcome.record.id}: the device was not fit to measure, so no table was made; see {outcome.folder}")
    return outcome.record


def _failed(record: Run) -> ExitCode:
    """The exit code of the kernels that failed, after a warning for each of them; no table names them."""
    from ..schema import FAILED_STATUSES, KernelId
    from .shared.output import remark

    failed = [result for result in record.results if result.status in FAILED_STATUSES]
    for result in failed:
        remark("warning", f"{result.kernel} on {result.case_key}: {result.status}: {result.reason}")
    return ExitCode.KERNEL_FAILED if any(not KernelId.parse(result.kernel).choice for result in failed) else ExitCode.PASS


def _row(one: TunedOp) -> dict[str, Any]:
    return {
        "op": one.op,
        "file": str(one.file),
        "gpu": one.table.gpu,
        "triton": one.table.triton,
        "entries": sum(len(group.entries) for group in one.table.groups),
        "measured": one.measured,
        **{name: _figures(ratios) for name, ratios in (("now", one.now), ("tuned", one.tuned), ("left_out", one.left_out))},
    }


def _figures(ratios: Sequence[float]) -> dict[str, float] | None:
    from ..verdict.dispatch_choice import shares

    if not ratios:
        return None
    close, far = shares(ratios)
    return {"cases": len(ratios), "within_1_02": close, "within_1_05": far, "worst": max(ratios)}


def _print(tuned: Sequence[TunedOp], *, written: bool) -> None:
    from .shared.output import print_table

    rows = [
        [
            one.op,
            f"{one.measured} of {sum(len(group.entries) for group in one.table.groups)}",
            *map(_cell, (one.now, one.tuned, one.left_out)),
        ]
        for one in tuned
    ]
    if len(tuned) > 1:
        every = [[ratio for one in tuned for ratio in getattr(one, name)] for name in ("now", "tuned", "left_out")]
        rows.append(["all", str(sum(one.measured for one in tuned)), *map(_cell, every)])
    title = "dispatch / best fused kernel: share of cases within 1.02, within 1.05, and the worst"
    print_table(["op", "entries measured", "now", "with the table", "each by the others"], rows, title=title)
    for one in tuned:
        typer.echo(f"{'table' if written else 'not written'}: {one.file}")


def _cell(ratios: Sequence[float]) -> str:
    from ..verdict.dispatch_choice import shares

    if not ratios:
        return "–"
    close, far = shares(ratios)
    return f"{100 * close:.0f} %, {100 * far:.0f} %, {max(ratios):.2f}x"
