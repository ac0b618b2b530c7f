"""What a command says about the seal of a record that it shows or judges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import AlteredRecordError
from ...schema import Run
from .output import remark

if TYPE_CHECKING:
    from ...config import Project
    from ...store.seal import SealState


def say_altered(folder: Path, run: Run) -> bool:
    """Say on stderr if the record in `folder` does not fit its seal; returns whether it has one."""
    from ...store.run_folder import seal_of

    return say_of(seal_of(folder), f"run {run.id}", folder)


def say_of(state: SealState, what: str, where: Path) -> bool:
    """Say on stderr if `what`, the record at `where`, does not fit its seal; returns whether it has one."""
    from ...store.seal import altered_words

    if state.altered:
        remark("warning", altered_words(what, state.altered, where))
    return state.sealed


def with_told_calibration(run: Run, project: Project) -> Run:
    """`run` with its device's calibration; says on stderr if that does not fit its seal.

    Raises:
        RunRecordError: as `store.calibration_note.load_note`.
    """
    from ...store.calibration_note import warnings_of_note, with_calibration

    found = with_calibration(run, project.results)
    for warning in warnings_of_note(project.results, run.environment.device_name) if found is not run else ():
        remark("warning", warning)
    return found


def require_unaltered(records: Mapping[Path, tuple[str, Run]], *, allowed: bool) -> None:
    """Refuse altered records, unless that is `allowed`; say which have no seal. `records`: by folder, what each is, and the record.

    Raises:
        AlteredRecordError: naming the record and the files.
    """
    from ...store.run_folder import seal_of
    from ...store.seal import REMEDY

    unsealed = []
    for folder, (what, run) in records.items():
        state = seal_of(folder)
        if state.altered and not allowed:
            raise AlteredRecordError(
                f"{folder}: {what} {run.id} was altered after it was written: {state.altered}; {REMEDY}, or judge it as it is with "
                "--allow-altered"
            )
        if state.altered:
            remark("warning", f"{what} {run.id} was altered after it was written, and is judged all the same: {state.altered} ({folder})")
        elif not state.sealed:
            unsealed.append(f"{what} {run.id}")
    if unsealed:
        remark("note", f"not sealed, because an older fusebench wrote it, so that an edit would not show: {', '.join(unsealed)}")
