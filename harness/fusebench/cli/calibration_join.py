"""`fusebench calibrate --join`: calibrations that were made elsewhere put into the stored one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import UsageError

if TYPE_CHECKING:
    from ..store.calibrations import CalibrationRecord

WITH_JOIN = {"join", "json"}
"""The options that may stand beside --join: nothing is measured."""
WHAT_TO_NAME = "name the results/calibration/<device>.json of another checkout"


def require_nothing_to_measure(context: typer.Context) -> None:
    """Raise UsageError where an option of the measurement was given too."""
    sources = {name: context.get_parameter_source(name) for name in sorted(context.params)}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE" and name not in WITH_JOIN]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--join measures nothing, so {options} cannot stand beside it; leave it out, or leave --join out")


def join_files(files: list[Path]) -> tuple[CalibrationRecord, Path]:
    """Put the sessions of each file into the stored calibration of its device model; all of them, or none.

    Raises:
        UsageError: a file that is not there, or whose sessions do not belong with those stored, or are stored already; or the folder takes
            no calibration.
        RunRecordError: a calibration that cannot be read.
    """
    from ..config import find_project
    from ..runner.calibrate.joining import joined
    from ..store.calibration_note import calibration_file
    from ..store.calibrations import join_calibration, read_calibration
    from ..store.files import require_writable

    project = find_project()
    found: list[CalibrationRecord] = []
    for file in files:
        record = read_calibration(file, instead=WHAT_TO_NAME)
        if record is None:
            raise UsageError(f"--join: there is no file {file}; {WHAT_TO_NAME}")
        found.append(record)
    device = found[0].environment.device_name
    require_writable(calibration_file(project.results, device).parent)

    def join(stored: CalibrationRecord | None) -> CalibrationRecord:
        for record in found:
            stored = joined(stored, record, "--join")
        assert stored is not None, "at least one file is given"
        return stored

    return join_calibration(project.results, device, join)
