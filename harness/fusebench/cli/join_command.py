"""`fusebench join`: the shards of one run as one record."""

from __future__ import annotations

from typing import Annotated

import typer

from ..schema import ExitCode
from .shared.measuring_options import BaselineOption, MarginOption, OutOption
from .shared.options import JsonOption


def join(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="The shards: folders, run ids or the start of one.  Every shard must be there, once."),
    ],
    out: OutOption = None,
    baseline: BaselineOption = None,
    margin: MarginOption = None,
    json: JsonOption = False,
) -> None:
    """Join the shards that `fusebench run --shard I/N` made, on any hosts, into one record.

    Every case names the board that measured it.  The whole is judged anew against the stored baseline, as one run would be.  The shards
    stay as they are.

    Shards must be of one commit, toolchain, model of device, selection and sampling plan.

    Exit codes: those of `run`; 2 shards that are missing, measured twice, or not of one kind.
    """
    from ..config import find_project
    from ..fleet.joining import JoinRequest, join_runs
    from .run_command import show_run
    from .shared.output import command_line

    request = JoinRequest(project=find_project(), runs=runs, out=out, baseline=baseline, margin=margin, command=command_line())
    outcome = join_runs(request)
    show_run(outcome, json=json)
    raise typer.Exit(ExitCode(outcome.record.exit_code))
