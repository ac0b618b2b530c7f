"""Find the run folder that a user names: by a path, a run's id, the start of an id, or `latest`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from pathlib import Path

from ..config import Project
from ..errors import RunRecordError, UnknownNameError
from ..schema import Run
from .journal import SUFFIX, recover, recover_runs
from .run_folder import RUN_FILE

LATEST = "latest"
COMPARISON_FILE = "ab.json"
"""File name of a comparison's record. Defined here, like those below, so that looking for the file imports no statistics."""
BISECTION_FILE = "bisect.json"
COUNTERS_FILE = "ncu.json"
MODEL_FILE = "model.json"
OTHER_RECORDS = {
    COMPARISON_FILE: "fusebench ab",
    BISECTION_FILE: "fusebench bisect",
    COUNTERS_FILE: "fusebench ncu",
    MODEL_FILE: "fusebench model",
}
"""Records that lie in the folder of runs, and are none, with the commands that write them."""


def runs_folder(project: Project) -> Path:
    """The default folder of the project's runs; `--out` overrides it."""
    return project.results / "runs"


def parent_of_record(out: Path | None, stopped: Path | None, project: Project) -> Path:
    """The folder that a new record's folder goes into: `--out`, else that of the stopped record it goes on with, else the project's.

    Args:
        stopped: the folder of the stopped record; None for a new measurement.
    """
    return out or (stopped.parent if stopped is not None else runs_folder(project))


def find_run(
    text: str, project: Project, *, records: Sequence[str] = (RUN_FILE,), made_by: str = "fusebench run", wait: bool = False
) -> Path:
    """The run folder that `text` names.

    A path wins (the folder, or the record in it); then `latest`; then a run id, a folder name, or a prefix of one that
    only one run under results/runs has. The folder of a run that was killed is made from its journal first.

    Args:
        records: names of record files; a folder that holds one of them is a candidate.
        made_by: the command that makes such folders, for messages.
        wait: whether `latest` may be a run in progress, which is then refused; it is passed over otherwise.

    Raises:
        RunRecordError: there are no runs, the prefix fits several, the run is still in progress, or the folder is another command's.
        UnknownNameError: nothing answers to `text`; the nearest id is suggested.
    """
    path = Path(text).expanduser()
    if path.name in records and path.is_file():
        return path.parent
    journal = path if path.name.endswith(SUFFIX) else path.with_name(path.name + SUFFIX)
    if len(path.parts) > 1 and journal.is_dir():
        return recover(journal)
    if path.name.endswith(SUFFIX) and (finished := path.with_name(path.name.removesuffix(SUFFIX))).is_dir():
        return finished  # its journal was turned into a run folder since
    if path.is_dir() or len(path.parts) > 1 or path.is_absolute():
        _require_kind(path, records, made_by)
        return path
    parent = runs_folder(project)
    left = recover_runs(parent)
    there = sorted(parent.iterdir()) if parent.is_dir() else []
    folders = [folder for folder in there if not folder.name.startswith(".") and _holds(folder, records)]
    newest = folders[-1].name if folders else ""
    for journal, error in left.items():
        name = journal.name.removesuffix(SUFFIX)
        if (wait and text == LATEST and name > newest) or _begins(name, text):
            raise error
    if not folders and (others := [folder.name for folder in there if (folder / "report.md").is_file()]):
        raise RunRecordError(f"no run {text!r}: {parent} holds none of `{made_by}`, only of other commands; name one, such as {others[-1]}")
    if not folders:
        raise RunRecordError(f"no run {text!r}: {parent} holds no runs yet; make one with `{made_by}`, or give a run folder's path")
    if text == LATEST:
        return folders[-1]
    try:
        return parent / fitting_name(text, [folder.name for folder in folders], where=str(parent))
    except UnknownNameError:
        for folder in there:
            if _begins(folder.name, text):
                _require_kind(folder, records, made_by)
        raise


def _require_kind(folder: Path, records: Sequence[str], made_by: str) -> None:
    """Refuse the record of another command, which has a form of its own."""
    if _holds(folder, records):
        return
    for name, command in OTHER_RECORDS.items():
        if _holds(folder, (name,)):
            raise RunRecordError(f"{folder}: found {name}, a record of `{command}`; expected one of `{made_by}`")


def _holds(folder: Path, records: Iterable[str]) -> bool:
    """Whether one of the record files is in the folder."""
    return any((folder / name).is_file() for name in records)


def _begins(name: str, text: str) -> bool:
    """Whether the folder name, or the run's id in it, begins with `text`."""
    return name.startswith(text) or name.partition("_")[2].startswith(text)


def fitting_name(text: str, names: Sequence[str], *, where: str) -> str:
    """The name of the run folder that `text` names: by the run's id, by the name, or by the start of one that only one run has.

    Args:
        where: the folder or store with these names, for messages.

    Raises:
        RunRecordError: the start fits several.
        UnknownNameError: nothing answers to `text`; the nearest id is suggested.
    """
    ids = {name: name.partition("_")[2] or name for name in names}
    exact = [name for name in names if text in (ids[name], name)]
    fitting = exact or [name for name in names if _begins(name, text)]
    if len(fitting) > 1:
        raise RunRecordError(f"run {text!r} is ambiguous: it fits {', '.join(fitting[:4])} of {where}; give more of the id")
    if not fitting:
        raise UnknownNameError("run", text, [*ids.values(), LATEST], where=where)
    return fitting[0]


def superseded(runs: Iterable[tuple[Run, Set[str]]]) -> dict[str, str]:
    """Ids of the stopped runs of which another one that went on with them holds every case, with that one's id.

    Both records stay, and hold the same measurements: whoever counts runs must take one of them.

    Args:
        runs: each with the keys of its cases.
    """
    known = list(runs)
    cases = {run.id: keys for run, keys in known if not run.complete}
    return {one: run.id for run, keys in known for one in run.resumed_from if one in cases and cases[one] <= keys}


def run_folders(parent: Path) -> list[Path]:
    """The folders of runs in `parent`, the oldest first; none where it does not exist."""
    return sorted(file.parent for file in parent.glob(f"[!.]*/{RUN_FILE}"))
