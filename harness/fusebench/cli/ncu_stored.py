"""Stored runs of `fusebench ncu`, by what a user types."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceUnfitError, UsageError

if TYPE_CHECKING:
    from ..config import Project
    from ..counters.records import CounterRun


def find_counters(text: str, project: Project) -> CounterRun:
    """The stored run that `text` names: a path, an id or the start of one, or `latest`."""
    from ..store.counter_folder import COUNTERS_FILE, read_counters
    from ..store.finding import find_run

    return read_counters(find_run(text, project, records=(COUNTERS_FILE,), made_by="fusebench ncu"))


def put_beside(record: CounterRun, against: str | None, project: Project) -> CounterRun:
    """`record` with the stored run that `against` names as its other side; as it is without one."""
    from ..runner.count.stored import beside

    return record if against is None else beside(record, find_counters(against, project))


def stored_run(text: str, project: Project, what: tuple[str, tuple[str, ...]], *, reread: bool) -> CounterRun:
    """The stored run that `text` names, or the one capture of it whose report it names.

    Args:
        what: a set's name and its metrics.
        reread: read these again from the reports, instead of what the record has.

    Raises:
        RunRecordError, UnknownNameError: there is no such run.
        CounterReportError: a report is missing, or is none.
        DeviceUnfitError: reports are to be read, and Nsight Compute is not there.
    """
    from ..counters.command import REPORT_SUFFIX
    from ..store.counter_folder import COUNTERS_FILE, read_counters
    from ..store.finding import find_run

    path = Path(text).expanduser()
    if path.suffix == REPORT_SUFFIX:
        return _report_of_a_run(path, what)
    folder = find_run(text, project, records=(COUNTERS_FILE,), made_by="fusebench ncu")
    record = read_counters(folder)
    if not reread:
        return record
    from ..runner.count.stored import reread as read_again

    return read_again(record, folder, _tool(), metric_set=what[0], metrics=what[1])


def _report_of_a_run(path: Path, what: tuple[str, tuple[str, ...]]) -> CounterRun:
    from ..counters.capturing import read_report
    from ..runner.count.stored import reread
    from ..store.counter_folder import COUNTERS_FILE, read_counters

    ncu_path = _tool()
    read_report(ncu_path, path, what[1])  # a file that is no report is said to be none, whatever lies beside it
    if not (path.parent / COUNTERS_FILE).is_file():
        raise UsageError(
            f"{path}: a report, but not of a `fusebench ncu`: no {COUNTERS_FILE} lies beside it that says which kernel and case it is of; "
            "open it with Nsight Compute's own viewer"
        )
    return reread(read_counters(path.parent), path.parent, ncu_path, metric_set=what[0], metrics=what[1], only=path.name)


def _tool() -> str:
    """Path of Nsight Compute, to read reports with; no GPU and no permission is needed for that."""
    from ..device.nsight import probe_nsight, tool_problem

    probe = probe_nsight()
    problem = tool_problem(probe)
    if problem is not None:
        raise DeviceUnfitError(f"reading .ncu-rep files: {'; '.join(problem)}")
    return probe.path
