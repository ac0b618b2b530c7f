"""`fusebench join` from its request to a stored record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..config import Project
from ..errors import AlteredRecordError
from ..naming import device_slug
from ..runner.session import Outcome
from ..schema import Run
from ..store.baselines import baseline_folder
from ..store.calibration_note import load_note, warnings_of_note
from ..store.files import require_writable
from ..store.finding import find_run, runs_folder
from ..store.journal import write_whole
from ..store.run_folder import read_run, sample_values, seal_of
from ..store.scatter_file import load_scatter
from ..store.seal import altered_words
from ..verdict.compare_to_baseline import judge_run, with_verdicts
from ..verdict.margin_rule import MarginRule
from ..verdict.record_validation import load_valid_baseline, require_valid, valid_baseline
from .joining import join_shards, joined_samples


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which shards are joined, and what the whole is judged by."""

    project: Project
    runs: Sequence[str]
    """Folders, run ids, or the starts of ids."""
    out: Path | None = None
    baseline: str | None = None
    margin: float | None = None
    command: str = ""


def join_runs(request: JoinRequest) -> Outcome[Run]:
    """Join the shards, judge the whole, and write it; the shards stay as they are.

    Raises:
        UsageError: as `join_shards`; a run or the baseline is unknown.
        AlteredRecordError: a shard does not fit its seal.
        RunRecordError: a record cannot be read, or holds impossible figures.
    """
    project = request.project
    parent = request.out if request.out is not None else runs_folder(project)
    require_writable(parent, instead="name another with --out DIR")
    folders = [find_run(one, project) for one in request.runs]
    runs = [read_run(folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        require_valid(run)
        if altered := seal_of(folder).altered:
            raise AlteredRecordError(f"join: {altered_words(f'run {run.id}', altered, folder)}")
    whole = join_shards(runs, command=request.command)
    device = whole.environment.device_name
    if request.baseline is not None:
        where = find_run(request.baseline, project)
        baseline: Run | None = valid_baseline(where)
    else:
        where = baseline_folder(project.results, device_slug(device))
        baseline = load_valid_baseline(project.results, device)
    told = [*warnings_of_note(project.results, device)]
    if baseline is not None and (altered := seal_of(where).altered):
        told.append(altered_words("the baseline", altered, where))
    whole = msgspec.structs.replace(
        whole, calibration=load_note(project.results, device), warnings=list(dict.fromkeys([*whole.warnings, *told]))
    )
    rule = MarginRule(request.margin, scatter=load_scatter(project.results, device), device=whole.environment.device)
    judged = with_verdicts(whole, judge_run(whole, baseline, rule))
    folder = write_whole(parent, judged, joined_samples([sample_values(one) for one in folders]))
    return Outcome(record=judged, folder=folder)
