"""Runs as the CSV table that Apache Otava finds change points in: one row per run, one column per kernel and case, times in microseconds.

Otava's importer takes no empty cell, so a column holds a time in every row; a series with a gap is left out and counted.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path

from ...config import Project
from ...errors import RunRecordError
from ...schema import Run
from ...verdict.history.series import Figure, Series, Snapshot, comparable_runs, series_of
from ...verdict.history.snapshots import history_folders, read_history
from ..escape import one_line
from ..wording import count

ATTRIBUTES = ("commit", "run", "branch")
"""Columns that Otava shows beside a change point."""
TIME = "time"


def otava_table(run: Run, folder: Path, project: Project) -> tuple[str, list[str], list[str]]:
    """The table of `run`, which lies in `folder`, and of the earlier comparable runs beside it.

    Returns:
        the CSV text, the names of its columns of times, and sentences on what was left out.

    Raises:
        RunRecordError: `run` is not fit for a history, or holds no time.
    """
    found, unreadable = read_history(history_folders([str(folder.parent)], project))
    own = next((one for one in found if one.run.id == run.id), None)
    if own is None:
        reasons = [one.reason for one in unreadable if Path(one.folder).resolve() == folder.resolve()]
        raise RunRecordError(reasons[0] if reasons else f"{folder}: run {run.id} is not in {folder.parent}")
    kept, left_out = comparable_runs([one for one in found if one.time <= own.time], Figure.RAW)
    series = [one for one in series_of(kept, Figure.RAW) if len(kept) - 1 in one.places]
    whole = [one for one in series if len(one.places) == len(kept)]
    if not whole:
        raise RunRecordError(f"run {run.id} holds no time that all of {len(kept)} comparable runs have: there is nothing to export")
    notes = [f"left out {one.folder}: {one.reason}" for one in unreadable]
    for reason, runs in Counter(one.reason for one in left_out).items():
        notes.append(f"left out {count(runs, 'run')} that cannot be compared with {run.id}: {reason}")
    if len(whole) < len(series):
        notes.append(f"left out {len(series) - len(whole)} of {len(series)} series that not every one of the {len(kept)} runs measured")
    names = [_name(one) for one in whole]
    return _csv(kept, whole, names), names, notes


def otava_config(table: Path, names: list[str]) -> str:
    """Otava's configuration for the table in the file `table`: one test, whose metrics are the columns `names`; smaller is better.

    It is written as JSON, which is YAML too.
    """
    metrics = {name: {"column": name, "direction": -1, "scale": 1.0} for name in names}
    test = {"type": "csv", "file": table.name, "time_column": TIME, "attributes": list(ATTRIBUTES[:2]), "metrics": metrics}
    return json.dumps({"tests": {"fusebench": test}}, indent=1, ensure_ascii=False) + "\n"


def _csv(runs: list[Snapshot], series: list[Series], names: list[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([TIME, *ATTRIBUTES, *names])
    for place, one in enumerate(runs):
        commit, created = one_line(one.run.environment.git_commit), one.time.isoformat()
        times = [f"{line.times_us[line.places.index(place)]:.6g}" for line in series]
        writer.writerow([created, commit, one_line(one.run.id), "main", *times])
    return out.getvalue()


def _name(series: Series) -> str:
    return one_line(f"{series.kernel}[{series.suite}:{series.case}] us")
