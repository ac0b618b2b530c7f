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
from .output import command_line

if TYPE_CHECKING:
    from ...runner.session import Outcome
    from ...schema import Run
    from .results import Results

OWN = {"on", "shards", "out", "json", "results", "baseline"}
"""Options that are not the shards': how the whole is measured and kept. A shard gets the records that `results` and `baseline` name."""
REFUSED = ("shard", "resume", "budget")
"""Options that cannot stand beside --on."""


def measure_on_engine(
    context: typer.Context, opened: Results, on: str, *, shards: int | None, baseline: str | None, margin: float | None, out: Path | None
) -> Outcome[Run]:
    """Measure every shard on the engine, and join them into a run on this machine, which is judged by the baseline of the results.

    Raises:
        StoreError: the store of the results takes no files, or cannot be read.
        UsageError: options that cannot stand beside --on, an engine that is not installed or configured, shards that cannot be joined, or
            baselines that are too large for the engine.
        RunRecordError: the named baseline cannot be read.
        ShardLostError: a shard could not be measured.
    """
    from ...fleet.cluster import ClusterRequest, run_on_engine
    from ...fleet.joining import JoinRequest, join_runs
    from ...fleet.shard_results import packed_results
    from ...store.finding import runs_folder
    from ...verdict.record_validation import valid_baseline
    from .progress import make_reporter

    if given := [f"--{name}" for name in option_names(context) if name in REFUSED]:
        raise UsageError(f"--on measures every shard of the selection, so {', '.join(given)} cannot stand beside it; leave it out")
    if opened.store is not None:
        opened.store.require_writable()
    named = opened.find(baseline) if baseline is not None else None
    if named is not None:
        valid_baseline(named)  # a record that cannot be read is found before anything is measured
    opened.fetch_baselines()
    parent = out if out is not None else runs_folder(opened.own)
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = parent.absolute() / f".on_engine_{started}_{secrets.token_hex(2)}"
    options = tuple(shard_options(context))
    judged_by = [text for name in ("results", "baseline") if (value := context.params[name]) is not None for text in (f"--{name}", value)]
    request = ClusterRequest(
        on=on,
        shards=shards,
        command=options,
        project=Path.cwd(),
        out=folder,
        results=packed_results(opened.project.results, named),
        judged_by=tuple(judged_by),
    )
    folders = run_on_engine(request, make_reporter())
    joined = JoinRequest(
        project=opened.project,
        runs=[str(one) for one in folders],
        out=parent,
        baseline=str(named) if named is not None else None,
        margin=margin,
        command=command_line(),
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
