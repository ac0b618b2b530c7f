"""The run folders of a history: find them, and read a snapshot of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...config import Project
from ...errors import RunRecordError, UsageError
from ...schema import Run
from ...store.finding import OTHER_RECORDS, runs_folder
from ...store.history_file import HISTORY_SUFFIX, KeptRun, keep_run, read_history_file, write_history
from ...store.journal import StillRunningError, recover_runs
from ...store.run_folder import RUN_FILE, read_run
from .series import Snapshot, snapshot


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A run folder that cannot be part of a history, and the reason."""

    folder: str
    reason: str


def history_folders(places: Sequence[str], project: Project) -> list[Path]:
    """The run folders and history files that `places` name, each once; without places, the folders in the project's own results/runs.

    A place is a run folder, a folder of run folders, a file that `fusebench history --keep` wrote, or a glob of any of these, which the
    shell need not have expanded.  Runs in progress, hidden folders and the records of `ab`, `bisect`, `ncu` and `model` are passed over.

    Raises:
        UsageError: a place that does not exist, or a glob that fits nothing.
    """
    if not places:
        return _runs_in(runs_folder(project))
    found: list[Path] = []
    for place in places:
        path = Path(place).expanduser()
        fitting = [path] if path.exists() else sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        fitting = [one for one in fitting if one.is_dir() or one.suffix == HISTORY_SUFFIX]
        if not fitting:
            raise UsageError(
                f"{place}: no such folder; expected a run folder, a folder of run folders, or a glob of either, or a file that "
                f"`fusebench history --keep` wrote; without one, {runs_folder(project)} is read"
            )
        for one in fitting:
            found += [one] if one.is_file() or (one / RUN_FILE).exists() else _runs_in(one)
    once: dict[Path, Path] = {}
    for folder in found:
        once.setdefault(folder.resolve(), folder)
    return list(once.values())


def read_history(folders: Sequence[Path]) -> tuple[list[Snapshot], list[Unreadable]]:
    """A snapshot of every run in `folders` (run folders and history files), in their order, and the unreadable ones with the reason."""
    found, unreadable = [], []
    for folder in folders:
        runs: Sequence[Run] = ()
        try:
            runs = read_history_file(folder) if folder.is_file() else [read_run(folder)]
        except RunRecordError as error:
            unreadable.append(Unreadable(folder=str(folder), reason=str(error)))
        for run in runs:
            try:
                found.append(snapshot(run))
            except RunRecordError as error:
                unreadable.append(Unreadable(folder=str(folder), reason=str(error)))
    return found, unreadable


def runs_in(folders: Sequence[Path]) -> list[Run]:
    """The runs in `folders` (folders and history files), each once.

    Raises:
        RunRecordError: a run cannot be read.
    """
    runs: list[Run] = []
    for folder in folders:
        runs += read_history_file(folder) if folder.is_file() else [read_run(folder)]
    return list({run.id: run for run in runs}.values())


def keep_history(folders: Sequence[Path], file: Path) -> int:
    """Write the runs in `folders` (folders and history files) to the history file `file`, and return how many there are.

    Raises:
        RunRecordError: a run cannot be read; nothing is written then.
    """
    runs: list[KeptRun] = []
    for folder in folders:
        runs += read_history_file(folder) if folder.is_file() else [keep_run(read_run(folder), folder)]
    return write_history(file, runs)


def _runs_in(parent: Path) -> list[Path]:
    """Every folder that is or was meant to be a run's: without a record it is named when it is read."""
    if not parent.is_dir():
        return []
    running = [journal for journal, error in recover_runs(parent).items() if isinstance(error, StillRunningError)]
    folders = sorted(one for one in parent.iterdir() if one.is_dir() and not one.name.startswith(".") and one not in running)
    return [one for one in folders if not any((one / name).exists() for name in OTHER_RECORDS)]
