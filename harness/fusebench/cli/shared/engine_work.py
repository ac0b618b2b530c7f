"""`fusebench run --on CONFIG`: the options of its shards, and the record that is joined from them."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...errors import UsageError
from .options import option_names
from .output import command_line, remark

if TYPE_CHECKING:
    from ...runner.session import Outcome
    from ...schema import Run
    from .results import Results

OWN = {"on", "shards", "out", "json", "results", "baseline", "margin"}
"""Options that are not the shards': how the whole is measured, judged and kept."""
REFUSED = ("shard", "resume", "budget")
"""Options that cannot stand beside --on."""


def measure_on_engine(
    context: typer.Context, opened: Results, on: str, *, shards: int | None, baseline: str | None, margin: float | None, out: Path | None
) -> Outcome[Run]:
    """Measure every shard on the engine, and join them into a run on this machine, which is judged by the baseline of the results.

    Raises:
        StoreError: the store of the results takes no files, or cannot be read.
        UsageError: options that cannot stand beside --on, an engine that is not installed or configured, or shards that cannot be joined.
        ShardLostError: a shard could not be measured.
    """
    from ...fleet.cluster import ClusterRequest, run_on_engine
    from ...fleet.joining import JoinRequest, join_runs
    from ...store.finding import runs_folder
    from ...store.run_folder import read_run
    from .progress import make_reporter

    if given := [f"--{name}" for name in option_names(context) if name in REFUSED]:
        raise UsageError(f"--on measures every shard of the selection, so {', '.join(given)} cannot stand beside it; leave it out")
    if opened.store is not None:
        opened.store.require_writable()
    named = str(opened.find(baseline)) if baseline is not None else None
    parent = out if out is not None else runs_folder(opened.own)
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = parent.absolute() / f".on_engine_{started}_{secrets.token_hex(2)}"
    options = tuple(shard_options(context))
    request = ClusterRequest(on=on, shards=shards, command=options, project=Path.cwd(), out=folder)
    remark("note", f"shards and the engine's logs are in {folder}")
    folders = run_on_engine(request, make_reporter())
    opened.fetch_baseline(read_run(folders[0]).environment.device_name)
    joined = JoinRequest(
        project=opened.project, runs=[str(one) for one in folders], out=parent, baseline=named, margin=margin, command=command_line()
    )
    return join_runs(joined)


def shard_options(context: typer.Context) -> list[str]:
    """The options of the command line that every shard gets."""
    given = {name for name in option_names(context) if name not in OWN}
    options: list[str] = []
    for parameter in context.command.params:
        if parameter.name in given:
            options += _written(parameter, context.params[parameter.name])
    return options


def _written(parameter: Any, value: Any) -> list[str]:
    """One option as a command line has it."""
    if isinstance(value, bool):
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    values = value if isinstance(value, list | tuple) else [value]
    return [text for one in values for text in (parameter.opts[0], str(one.value if isinstance(one, Enum) else one))]
