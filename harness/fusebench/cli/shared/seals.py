"""What a command says about the seal of a record that it shows or judges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import AlteredRecordError
from ...schema import Run
from .output import remark

REMEDY = "restore it from a copy, or measure again"


def say_altered(folder: Path, run: Run, what: str = "run") -> bool:
    """Say on stderr if the record in `folder` does not fit its seal; returns whether it has one."""
    from ...store.run_folder import seal_of

    state = seal_of(folder)
    if state.altered:
        remark("warning", f"{what} {run.id} was altered after it was written: {state.altered} ({folder}); {REMEDY}")
    return state.sealed


def require_unaltered(records: Mapping[Path, tuple[str, Run]], *, allowed: bool) -> None:
    """Refuse altered records, unless that is `allowed`; say which have no seal. `records`: by folder, what each is, and the record.

    Raises:
        AlteredRecordError: naming the record and the files.
    """
    from ...store.run_folder import seal_of

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
