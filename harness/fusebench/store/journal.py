"""The journal of a run in progress: a kill at any moment loses one case at most.

A folder `<created>_<id>.unfinished` beside the runs holds the record without cases (`head.json`) and one file per finished case, each
written at once. A case that is measured again gets a further file, and the last one counts. The run holds `lock` and names itself in
`holder.json`. The journal is removed after the run's own folder was written and read back. `recover` makes that folder from the journal of
a run that was killed, marked incomplete, so that every reader sees a record of the usual form.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import RecordNotWrittenError, RunRecordError
from ..schema import SCHEMA_VERSION, CaseSummary, Result, Run, Sample
from ..stats.weighted import suite_summaries
from .files import make_folder, resume_command, sync_folder, write_file
from .record_files import decode_record, encode_record
from .run_folder import WARM_UP, decode_samples, encode_samples, folder_name, read_run, read_samples, seal_of, write_run

if TYPE_CHECKING:
    import filelock

SUFFIX = ".unfinished"
"""End of the name of a journal's folder."""
HEAD_FILE = "head.json"
ENTRY_SUFFIX = ".case"
LOCK_FILE = "lock"
HOLDER_FILE = "holder.json"
RECOVERY_S = 20.0
"""Seconds to wait for another process that makes the folder of a run that was killed; a nightly's takes one."""
REBUILT = "this record was rebuilt from the journal of a run that was ended before it could write its record"
"""The warning in the record of a run that was killed."""


class StillRunningError(RunRecordError):
    """The run of a journal is still in progress."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One finished case."""

    run: Run
    """The record as it stood, with this case and its warm-ups only, and without kernels and suites."""
    samples: bytes
    """The case's samples, as the content of a Parquet file."""


class Journal:
    """Writes the journal of one run; the folder appears with `begin`."""

    def __init__(self, parent: Path) -> None:
        """`parent`: the folder that the run's own folder goes into."""
        self.parent = parent
        self.folder: Path | None = None
        self.cases = 0
        """Number of files of finished cases."""
        self._lock: filelock.BaseFileLock | None = None
        self._command = ""
        """The command line of the run."""
        self._absent: list[Path] = []
        """Folders that did not exist before."""

    def begin(self, head: Run) -> None:
        """Make the folder with `head`, the record without cases, with every kernel that the run may measure.

        Raises:
            RecordNotWrittenError: the disk is full, or the folder cannot be written.
        """
        from ..device.lock import write_note

        self._command = head.command
        folder = self.parent / (folder_name(head) + SUFFIX)
        self._absent = [one for one in (self.parent, *self.parent.parents) if not one.exists()]
        making = folder.with_name(f".{folder.name}.partial")
        try:
            make_folder(making)
            self.folder = making
            # Locked before anybody sees it; a lock follows its folder's new name.
            self._lock = _lock(making)
            self._lock.acquire(timeout=0)
            write_note(making / HOLDER_FILE)
            write_file(making / HEAD_FILE, encode_record(head))
            making.rename(folder)
            self.folder = folder
            sync_folder(self.parent)
        except OSError as error:
            self.remove()
            raise RecordNotWrittenError(
                f"{folder}: cannot be written: {error.strerror or error}; nothing was measured yet; make space there, or name another "
                "folder with --out DIR"
            ) from error

    def add(self, run: Run, samples: Sequence[Sample]) -> None:
        """Write one finished case: `run` holds it alone.

        Raises:
            RecordNotWrittenError: the disk is full, or the folder cannot be written.
        """
        if self.folder is None:
            return
        run = msgspec.structs.replace(run, kernels=[], suites=[])
        entry = Entry(run=run, samples=encode_samples(run.id, samples))
        try:
            write_file(self.folder / f"{self.cases:06d}{ENTRY_SUFFIX}", msgspec.msgpack.encode(entry))
        except OSError as error:
            raise RecordNotWrittenError(self.not_written(error)) from error
        self.cases += 1

    def not_written(self, error: OSError | RunRecordError) -> str:
        """What is kept, and where, after `error` kept the record from being written."""
        why = error.strerror or error if isinstance(error, OSError) else error
        if self.folder is None or not self.cases:
            return f"{self.parent}: the record could not be written: {why}; make space there, and start the run again"
        return (
            f"{self.parent}: the record could not be written: {why}; the cases that were finished before are kept in {self.folder}; "
            f"make space there, and go on with `{resume_command(self._command, self.folder)}`"
        )

    def close(self) -> None:
        """Leave the journal to whoever resumes the run."""
        if self.folder is not None:
            with suppress(OSError):
                (self.folder / HOLDER_FILE).unlink()
        if self._lock is not None:
            self._lock.release()

    def remove(self) -> None:
        """Remove the journal: its record is written, or there is nothing to keep."""
        self.close()
        if self.folder is not None:
            _discard(self.folder)
            self.folder = None
        for one in self._absent:
            with suppress(OSError):  # it holds the record, or something of somebody else
                one.rmdir()


def journals_in(parent: Path) -> list[Path]:
    """The journals in `parent`, the oldest first."""
    return sorted(parent.glob(f"*{SUFFIX}")) if parent.is_dir() else []


def recover_runs(parent: Path) -> dict[Path, RunRecordError]:
    """Make a run folder of each journal in `parent` whose run was killed; the journals of which none was made, and why."""
    left = {}
    for journal in journals_in(parent):
        try:
            recover(journal)
        except RunRecordError as error:
            left[journal] = error
    return left


def recover(journal: Path) -> Path:
    """Make the folder of a run that was killed from its journal, remove the journal, and return the folder.

    Raises:
        StillRunningError: the run is still in progress.
        RunRecordError: the journal cannot be read, or the folder cannot be written.
    """
    target = journal.with_name(journal.name.removesuffix(SUFFIX))
    try:
        with _taken(journal):
            if not target.exists():
                if {one.name for one in journal.iterdir()} <= {LOCK_FILE}:  # the lock made the folder again
                    _discard(journal)
                    raise RunRecordError(f"{journal}: was removed meanwhile, because its run ended and left nothing to keep")
                run, samples = rebuild(journal)
                if folder_name(run) != target.name:
                    raise RunRecordError(f"{journal}: holds run {run.id} of {run.created}; expected a folder of that name")
                write_whole(journal.parent, run, samples)
            # Half-written folders of a run that was killed while it wrote them.
            for rest in journal.parent.glob(f".{target.name}.*.partial"):
                shutil.rmtree(rest, ignore_errors=True)
            _discard(journal)
    except OSError as error:
        raise RunRecordError(
            f"{journal}: the run was ended before it wrote its record, and its folder cannot be made now: {error.strerror or error}; "
            "make space there, and make it writable"
        ) from error
    return target


def write_whole(parent: Path, run: Run, samples: Sequence[Sample]) -> Path:
    """`write_run`, and read the folder back.

    Raises:
        OSError: the disk is full, or `parent` cannot be written.
        RunRecordError: as `write_run`, or the folder cannot be read back.
    """
    folder = write_run(parent, run, samples)
    read_run(folder)
    read_samples(folder)
    if altered := seal_of(folder).altered:
        raise RunRecordError(f"{folder}: was not written whole: {altered}")
    return folder


def rebuild(journal: Path) -> tuple[Run, list[Sample]]:
    """The record and the samples of an unfinished run; a file that cannot be read is named in the record's warnings.

    Raises:
        RunRecordError: the journal holds no readable head.
    """
    file = journal / HEAD_FILE
    try:
        head = decode_record(file.read_bytes(), Run, version="schema_version", newest=SCHEMA_VERSION, where=file)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunRecordError(f"{file}: cannot be read: {error}; remove {journal} and run again") from error
    last, lost = head, []
    cases: dict[str, CaseSummary] = {}
    results: dict[str, list[Result]] = {}
    samples: dict[str, list[Sample]] = {}
    warm_up: dict[str, Any] = {}
    for path in sorted(journal.glob(f"*{ENTRY_SUFFIX}")):
        try:
            entry = msgspec.msgpack.decode(path.read_bytes(), type=Entry)
            (summary,) = entry.run.cases
            measured = decode_samples(entry.samples, path)
            suite_summaries([summary], entry.run.results)  # figures that no sum can be made of
        except (OSError, ValueError, OverflowError, RecursionError, RunRecordError) as error:
            lost.append(f"a case of the journal is lost, because {path.name} cannot be read: {error}")
            continue
        last, key = entry.run, summary.case.key
        cases[key], results[key], samples[key] = summary, entry.run.results, measured
        warm_up |= entry.run.environment.state.get(WARM_UP) or {}
    found = [result for one in results.values() for result in one]
    timed = {result.kernel for result in found}
    state = last.environment.state | ({WARM_UP: warm_up} if WARM_UP in last.environment.state else {})
    run = msgspec.structs.replace(
        last,
        environment=msgspec.structs.replace(last.environment, state=state),
        suites=suite_summaries(list(cases.values()), found),
        cases=list(cases.values()),
        kernels=[one for one in head.kernels if one.id in timed],
        results=found,
        warnings=[*last.warnings, REBUILT, *lost],
        complete=False,
    )
    return run, [sample for one in samples.values() for sample in one]


@contextmanager
def _taken(journal: Path) -> Iterator[None]:
    """Hold the journal's lock for the body.

    Raises:
        StillRunningError: its run, or somebody who recovers it, holds the lock, or the process that the note names still runs.
    """
    import filelock

    from ..device.lock import describe_holder, is_alive, read_holder

    note = journal / HOLDER_FILE
    lock = _lock(journal)
    holder = read_holder(note)
    has_ended = holder is None or (holder.host == platform.node() and not is_alive(holder))
    try:
        # Whoever holds the lock of a run that has ended makes its folder, which is soon done.
        lock.acquire(timeout=RECOVERY_S if has_ended else 0)
    except filelock.Timeout:
        raise StillRunningError(f"{journal}: this run is still in progress: {describe_holder(note)}; wait for its end") from None
    try:
        holder = read_holder(note)
        if holder is not None and is_alive(holder):
            raise StillRunningError(f"{journal}: this run is still in progress: {holder}; wait for its end")
        yield
    finally:
        lock.release()


def _lock(journal: Path) -> filelock.BaseFileLock:
    import filelock

    return filelock.FileLock(journal / LOCK_FILE)


def _discard(journal: Path) -> None:
    """Remove a journal so that nobody sees half of it."""
    aside = journal.with_name(f".{journal.name.strip('.')}.removed.partial")
    with suppress(OSError):
        journal.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
