"""`fusebench baseline`: keep a run as the baseline of its device model, or show what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..verdict.margin_rule import DEFAULT_MARGIN, MarginRule
from .shared.options import JsonOption, a_number
from .shared.output import print_json, print_table, remark

if TYPE_CHECKING:
    from pathlib import Path

    from ..schema import Run

baseline = typer.Typer(help="Keep a run as the baseline of its device model, or show what is kept.", no_args_is_help=True)


@baseline.command()
def promote(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run to keep: a folder, a run id or the start of one, or `latest`.")],
    force: Annotated[bool, typer.Option("--force", help="Promote despite objections; they are printed.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why slower kernels are accepted; kept with the baseline, in promotions.json.")
    ] = "",
    margin: Annotated[
        float,
        typer.Option(
            "--margin",
            min=0.001,
            max=1.0,
            callback=a_number,
            help="Change against the last baseline that needs a reason, twice that for calls of several launches: 0.02 is 2 %.",
        ),
    ] = DEFAULT_MARGIN,
) -> None:
    """Make RUN the baseline of its device model: record, samples, report and plot, in results/baselines/.

    A run that is slower than the last baseline by more than the margin, or less accurate, is refused unless --reason says why.

    Exit codes: 0; 1 slower or less accurate, and no reason; 2 the run cannot be read, or is not fit to be a baseline.
    """
    from ..config import find_project
    from ..report.pages import write_views
    from ..store.baselines import VIEWS, objections, promote
    from ..store.finding import find_run
    from ..store.run_folder import read_run
    from ..verdict.promotion import require_reason
    from ..verdict.record_validation import load_valid_baseline, require_valid

    project = find_project()
    folder = find_run(run, project)
    record = read_run(folder)
    require_valid(record)
    if not all((folder / name).is_file() for name in VIEWS):
        write_views(record, folder)
    last = load_valid_baseline(project.results, record.environment.device_name)
    accepted = require_reason(record, last, MarginRule(margin), reason)
    target = promote(folder, project.results, force=force, reason=reason.strip(), accepted=accepted)
    for change in accepted:
        remark("accepted", change)
    for objection in objections(record, folder):
        remark("warning", f"promoted although {objection}")
    typer.echo(f"baseline of {record.environment.device_name}: run {record.id}, in {target}")


@baseline.command()
def show(json: JsonOption = False) -> None:
    """List the baselines that are kept, one per device model."""
    from ..config import find_project
    from ..store.baselines import list_baselines

    project = find_project()
    rows = [_row(folder, run) for folder, run in list_baselines(project.results)]
    if json:
        print_json(rows)
    elif rows:
        columns = ["device", "run", "created", "timer", "cache", "cases", "weighted_speedup", "commit", "objections", "reason"]
        print_table(columns, [[_cell(row[column]) for column in columns] for row in rows], right=("cases",))
    else:
        typer.echo(f"no baselines in {project.results / 'baselines'}; keep a run with `fusebench baseline promote RUN`")


def _row(folder: Path, run: Run) -> dict[str, Any]:
    from ..stats.weighted import BEST_FUSED
    from ..store.baselines import objections, promotions

    reasons = [one.reason for one in promotions(folder) if one.run == run.id]
    return {
        "folder": str(folder),
        "device": run.environment.device_name,
        "run": run.id,
        "created": run.created,
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


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {speedup:.3f}x" for name, speedup in value.items() if speedup is not None) or "–"
    return "; ".join(value) if isinstance(value, list) else str(value)
