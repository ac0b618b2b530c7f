"""The run folders of a history: which there are, and what could be read of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..config import Project
from ..errors import RunRecordError, UsageError
from ..store.finding import COMPARISON_FILE, runs_folder
from ..store.run_folder import RUN_FILE, read_run
from .history import Snapshot, snapshot


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A run folder that says nothing of a history, and why."""

    folder: str
    reason: str


def history_folders(places: Sequence[str], project: Project) -> list[Path]:
    """The run folders that `places` name, each once; those of the project's own results/runs where nothing is named.

    A place is a run folder, a folder of run folders, or a glob of either, which the shell need not have expanded.  Hidden folders
    (runs that are being written) and the records of `fusebench ab` are passed over.

    Raises:
        UsageError: a place that does not exist, or a glob that fits nothing.
    """
    if not places:
        return _runs_in(runs_folder(project))
    found: list[Path] = []
    for place in places:
        path = Path(place).expanduser()
        fitting = [path] if path.exists() else sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        folders = [one for one in fitting if one.is_dir()]
        if not folders:
            raise UsageError(
                f"{place}: no such folder; expected a run folder, a folder of run folders, or a glob of either; "
                f"without one, {runs_folder(project)} is read"
            )
        for folder in folders:
            found += [folder] if (folder / RUN_FILE).exists() else _runs_in(folder)
    once: dict[Path, Path] = {}
    for folder in found:
        once.setdefault(folder.resolve(), folder)
    return list(once.values())


def read_history(folders: Sequence[Path]) -> tuple[list[Snapshot], list[Unreadable]]:
    """What every one of `folders` says, in their order, and those that say nothing, with the reason."""
    found, unreadable = [], []
    for folder in folders:
        try:
            found.append(snapshot(read_run(folder)))
        except RunRecordError as error:
            unreadable.append(Unreadable(folder=str(folder), reason=str(error)))
    return found, unreadable


def _runs_in(parent: Path) -> list[Path]:
    """Every folder that is or was meant to be a run's: without a record it is named when it is read."""
    if not parent.is_dir():
        return []
    folders = sorted(one for one in parent.iterdir() if one.is_dir() and not one.name.startswith("."))
    return [one for one in folders if not (one / COMPARISON_FILE).exists()]
