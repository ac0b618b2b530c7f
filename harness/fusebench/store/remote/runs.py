"""Runs on a store: immutable folders `runs/<created>_<id>`, of which readers see a whole one or none.

`run.json` is uploaded last, so a folder without it is no run: it is being published, or its publication was ended, and publishing the same
folder again completes it.  No lock is needed, because no file is ever replaced.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import AlteredRecordError, RunRecordError
from ...schema import Run
from ..files import write_file
from ..finding import LATEST, fitting_name
from ..run_folder import RUN_FILE, folder_name, read_run, seal_of
from ..seal import digest, digests_in
from .files import Store

RUNS = "runs"
_ATTEMPTS = 3
"""A download that does not fit its seal is tried again; a record that was altered on the store never fits."""


def publish_run(store: Store, folder: Path) -> tuple[str, Run]:
    """Upload the run in `folder`, and return its path on the store, and the run.  A run that is there already is left as it is.

    Raises:
        RunRecordError: the run cannot be read, or another record is on the store under its id.
        AlteredRecordError: it does not fit its seal.
        StoreError: the store failed; what was uploaded before is no run to any reader.
    """
    run = read_run(folder)
    if altered := seal_of(folder).altered:
        raise AlteredRecordError(f"{folder}: run {run.id} was altered after it was written: {altered}; publish a copy that was not")
    target = f"{RUNS}/{folder_name(run)}"
    upload(store, folder, target, f"run {run.id}")
    return target, run


def upload(store: Store, folder: Path, target: str, what: str) -> None:
    """Upload the record in `folder` as the new folder `target`, its `run.json` last.

    Raises:
        RunRecordError: another record is there already.
        StoreError: as `publish_run`.
    """
    record = (folder / RUN_FILE).read_bytes()
    there = store.read(f"{target}/{RUN_FILE}")
    if there == record:
        return
    try:
        if there is not None:
            raise FileExistsError
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.name != RUN_FILE and not file.name.startswith("."):
                # Views are made anew by every publication, and the seal holds the others: those of an ended attempt are replaced.
                store.write(f"{target}/{file.name}", file.read_bytes())
        store.write(f"{target}/{RUN_FILE}", record, new=True)
    except FileExistsError:
        raise RunRecordError(
            f"{store.where(target)}: another record of {what} is there already; a run is never overwritten, so give the new one its own id"
        ) from None


def download(store: Store, source: str, folder: Path) -> None:
    """Download the record at `source` into the new folder `folder`.

    A record that does not fit its seal is downloaded as it is after the last attempt: whoever reads it says so.

    Raises:
        RunRecordError: there is no whole record.
        StoreError: the store failed.
    """
    record = store.read(f"{source}/{RUN_FILE}")
    if record is None:
        raise RunRecordError(
            f"{store.where(source)}: not a whole run: it holds no {RUN_FILE}, which is uploaded last; wait for the end of its publication, "
            "or publish the run again with `fusebench catalogue publish`"
        )
    write_file(folder / RUN_FILE, record)
    sealed = digests_in(folder / RUN_FILE)
    for name in store.names(source):
        if name == RUN_FILE:
            continue
        for _ in range(_ATTEMPTS):
            content = store.read(f"{source}/{name}")
            if content is None or sealed.get(name) in (None, digest(content)):
                break
        if content is not None:
            write_file(folder / name, content)


def run_names(store: Store) -> list[str]:
    """Names of the folders of runs, the oldest first; some may not be whole."""
    return store.names(RUNS)


def is_whole(store: Store, name: str) -> bool:
    """Whether the run in the folder `name` is published."""
    return RUN_FILE in store.names(f"{RUNS}/{name}")


def named_run(store: Store, text: str) -> str:
    """The name of the folder of the run that `text` names: `latest`, an id, a folder name, or the start of one that only one run has.

    Raises:
        RunRecordError: the store holds no runs, or several fit.
        UnknownNameError: nothing answers to `text`.
    """
    names = run_names(store)
    if text == LATEST:
        found = next((name for name in reversed(names) if is_whole(store, name)), None)
        if found is None:
            raise RunRecordError(f"{store.url}: holds no runs yet; publish one with `fusebench run --results {store.url}`")
        return found
    return fitting_name(text, names, where=store.url)
