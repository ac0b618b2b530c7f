"""`fusebench baseline`: keep a run as the baseline of its device model, or show what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..verdict.margins.rule import MarginRule
from .shared.options import JsonOption, a_number
from .shared.output import print_json, print_table, remark
from .shared.results import ResultsOption, open_results

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..config import Project
    from ..schema import Result, Run

baseline = typer.Typer(help="Keep a run as the baseline of its device model, or show what is kept.", no_args_is_help=True)


@baseline.command(short_help="Make RUN the baseline of its device model.")
def promote(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="The run to keep: a folder, a run id or the start of one, or `latest`.  Several runs are joined: each time is their mean.",
        ),
    ],
    *,
    add: Annotated[
        bool, typer.Option("--add", help="Add the runs to the stored baseline of their device model instead of replacing it.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="GLOB",
            help="Leave out of the joined runs kernels that the project has no more, which gates would miss: globs as of `run --kernel`; "
            "repeatable.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Promote despite objections; they are printed.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why slower kernels are accepted; kept with the baseline, in promotions.json.")
    ] = "",
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            metavar="SHARE",
            min=0.001,
            max=1.0,
            callback=a_number,
            help="Change against the last baseline that needs a reason: 0.02 is 2 %.  By default the margin of `gate`.",
            show_default=False,
        ),
    ] = None,
    results: ResultsOption = None,
) -> None:
    """Make RUN the baseline of its device model: record, samples, report and plot, in results/baselines/.

    Name at least eight runs, of several boards where there are, or one run of eight processes: a gate cannot tell the mode of a baseline's
    one process from a change.  The runs may be of several commits: a kernel on a case joins the runs that timed it with the newest run's
    machine code.  Device model, timer and cache state must be the same, and every working tree clean.

    With --add, the stored baseline is one of the runs: it grows by last night's run, though the folders of its own runs are gone.  Each of
    its times counts as many times as runs are behind it.  Kernels whose machine code changed start anew.  Cases that the newest run did not
    ask for, or was stopped before, keep their times.

    On a GPU model without a stored scatter between runs, that of these runs is stored, and gates take their margins from it.

    A run that is slower than the last baseline by more than the margin, or less accurate, is refused unless --reason says why.

    Exit codes: 0; 1 slower or less accurate, and no reason; 2 the run cannot be read, or is not fit to be a baseline.
    """
    from ..config import find_project
    from ..errors import UsageError
    from ..naming import device_slug
    from ..report.run.pages import write_views
    from ..store.baselines import VIEWS, baseline_folder, objections, promote
    from ..store.scatter_file import load_scatter
    from ..verdict.baseline.joined import join_runs, support_words
    from ..verdict.baseline.promotion import added_to, first_of, require_reason
    from ..verdict.comparability import toolchain_changes
    from ..verdict.record_validation import load_valid_baseline

    opened = open_results(results, find_project())
    project = opened.project
    folders = _read_runs([opened.find(run) for run in runs], without or ())
    new = join_runs(list(folders.values()))
    device = new.environment.device_name
    opened.fetch_baseline(device)
    last = load_valid_baseline(project.results, device)
    stored = baseline_folder(project.results, device_slug(device))
    added = {folder: run for folder, run in folders.items() if folder.resolve() != stored.resolve()}
    grown = last if added and (add or len(added) < len(folders)) else None
    if grown is not None:
        new, record = join_runs(list(added.values())), added_to(grown, list(added.values()))
        folders = {stored: grown, **added}
        if changes := toolchain_changes(record, grown):
            told = "times of equal machine code join all the same; without --add these runs begin a new baseline"
            remark("note", f"since the baseline changed {', '.join(changes)}; {told}")
    else:
        record = new
        if add:
            remark("note", f"no baseline of {device} is stored, so these runs begin it")
    if without and len(folders) == 1:
        raise UsageError(
            "found --without and one run; a baseline of one run is that run as it was measured: join it by --add, or name more"
        )
    rule = MarginRule(margin, scatter=load_scatter(project.results, device), device=record.environment.device)
    # Among the runs of the baseline a slow one would hardly show in the mean, so that the runs are judged without it.
    accepted = require_reason(new, last, rule, reason, adding=grown is not None)
    *others, folder = sorted(folders, key=lambda one: (folders[one].created, not folders[one].joined))
    if not others and not all((folder / name).is_file() for name in VIEWS):
        write_views(record, folder)
    joined = record if others else None
    against = [
        f"{text}{f' (run {one.id})' if others else ''}"
        for where, one in folders.items()
        for text in objections(one, where, added=grown is not None and where in added)
    ]
    reason = reason.strip()
    target = promote(folder, project.results, joined=joined, others=others, grown=grown, force=force, reason=reason, accepted=accepted)
    if others:
        write_views(record, target)
    where_kept = opened.publish_baseline(device) or str(target)
    _keep_first_scatter(list(folders.values()), project)
    for change in first_of(accepted):
        remark("accepted", change)
    for objection in against:
        remark("warning", f"promoted although {objection}")
    _say_what_runs_lack(record, list(folders.values()))
    typer.echo(f"baseline of {device}: run {record.id}, in {where_kept}; {support_words(record)}")


def _read_runs(folders: Sequence[Path], without: Sequence[str]) -> dict[Path, Run]:
    """The run of each folder, without the kernels that the globs `without` match."""
    from ..store.run_folder import read_run
    from ..verdict.baseline.scope import without_kernels
    from ..verdict.record_validation import require_valid

    runs = {folder: read_run(folder) for folder in folders}
    for run in runs.values():
        require_valid(run)
    if not without:
        return runs
    kept = without_kernels(list(runs.values()), without)
    left_out = {one.kernel for run in runs.values() for one in run.results} - {one.kernel for run in kept for one in run.results}
    remark("note", f"left out: {', '.join(sorted(left_out))}")
    return dict(zip(runs, kept, strict=True))


def _say_what_runs_lack(record: Run, runs: Sequence[Run]) -> None:
    """Name what the baseline `record` keeps of older runs, its times that rest on fewer runs, why, and times that were disturbed."""
    from ..verdict.baseline.joined import disturbed, partly_joined, shares
    from ..verdict.baseline.kept_cases import kept_cases
    from ..verdict.baseline.promotion import first_of
    from ..verdict.margins.support import MOST_ERROR

    if kept := kept_cases(record):
        by, cases = ", ".join(sorted({one.id for one in kept.values()})), ", ".join(first_of(list(kept), 4))
        remark("note", f"{len(kept)} cases, which the newest run did not measure, keep the times of run {by}: {cases}")
    if partly := partly_joined(record):
        gating = sum(one.speed_gates for one in partly)
        rest = f"{len(partly)} times rest on fewer runs, {gating} of them gating: {', '.join(_places(partly))}"
        remark("note", f"{rest}; later runs of the same code support them: promote RUN --add")
    for share in shares(runs):
        remark("note", share)
    for run in runs:
        if found := disturbed(run):
            known = f"{len(found)} times of run {run.id} have a standard error above {100 * MOST_ERROR:.0f} %: {', '.join(_places(found))}"
            remark("note", f"{known}; where other runs timed the same code, the baseline holds these runs' time without it")


def _keep_first_scatter(runs: Sequence[Run], project: Project) -> None:
    """Store the scatter between the runs, from which gates take their margins, where a GPU model has none yet."""
    from ..store.scatter_file import load_scatter, write_scatter
    from ..verdict.baseline.run_scatter import scatter_between
    from ..verdict.margins.words import margin_rows, margin_words

    newest = max(runs, key=lambda run: run.created)
    if newest.environment.device != "cuda" or load_scatter(project.results, newest.environment.device_name) is not None:
        return
    rule = MarginRule(scatter=scatter_between(runs), device=newest.environment.device)
    if rule.scatter is not None and margin_rows(rule, newest):
        remark("note", f"{margin_words(rule, newest)}; wrote {write_scatter(project.results, rule.scatter)}")


def _places(results: Sequence[Result]) -> list[str]:
    """The first of these kernels and cases, and how many more."""
    from ..verdict.baseline.promotion import first_of

    return first_of([f"{one.kernel} on {one.case_key}" for one in results], 4)


@baseline.command(short_help="List the baselines that are kept.")
def show(results: ResultsOption = None, json: JsonOption = False) -> None:
    """List the baselines that are kept, one per device model.  The speedups of each suite are in --json, and in `report DIR`."""
    from ..config import find_project
    from ..report.escape import cleaned
    from ..store.baselines import list_baselines

    opened = open_results(results, find_project())
    opened.fetch_baselines()
    rows = [_row(folder, run) | {"folder": opened.where(folder)} for folder, run in list_baselines(opened.project.results)]
    if json:
        print_json(rows)
    elif rows:
        columns = ["device", "run", "created", "processes", "boards", "timer", "cache", "cases", "weighted_speedup", "commit"]
        cells = [[_cell(name, row[name]) for name in columns] for row in rows]
        print_table(columns, cells, right=("processes", "boards", "cases"))
        for row in rows:
            for objection in row["objections"]:
                typer.echo(f"{row['device']}, run {row['run']}, was promoted although {cleaned(objection)}")
            if row["reason"]:
                typer.echo(f"{row['device']}, run {row['run']}, was promoted with the reason: {cleaned(row['reason'])}")
    else:
        there = opened.where(opened.project.results / "baselines")
        typer.echo(f"no baselines in {there}; keep a run with `fusebench baseline promote RUN`")


_SHORT = {"created": len("2026-11-26"), "commit": 8}
"""Characters of such a value in the table; `--json` has all."""


def _row(folder: Path, run: Run) -> dict[str, Any]:
    from ..stats.weighted import BEST_FUSED
    from ..store.baselines import objections, promotions
    from ..verdict.baseline.joined import processes_and_boards

    reasons = [one.reason for one in promotions(folder) if one.run == run.id]
    processes, boards = processes_and_boards(run)
    return {
        "folder": str(folder),
        "device": run.environment.device_name,
        "run": run.id,
        "created": run.created,
        "processes": processes,
        "boards": boards,
        "joined": [one.id for one in run.joined],
        "timer": run.timer,
        "cache": str(run.plan.cache),
        "cases": len(run.cases),
        "weighted_speedup": {suite.name: suite.weighted_speedup.get(BEST_FUSED) for suite in run.suites},
        "driver": run.environment.driver,
        "torch": run.environment.torch,
        "triton": run.environment.triton,
        "commit": run.environment.git_commit[:12],
        "objections": objections(run, folder),
        "reason": reasons[-1] if reasons else "",
    }


def _cell(column: str, value: Any) -> str:
    if column in _SHORT:
        return str(value)[: _SHORT[column]]
    if isinstance(value, dict):
        known = {name: speedup for name, speedup in value.items() if speedup is not None}
        if len(known) > 1:
            return f"{min(known.values()):.2f}x to {max(known.values()):.2f}x, {len(known)} suites"
        return ", ".join(f"{name} {speedup:.3f}x" for name, speedup in known.items()) or "–"
    return str(value)
