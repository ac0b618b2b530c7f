"""Resumes a stopped run of captures: those that it made are taken over, with their reports, if nothing has changed that they depend on."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from ...config import Project
from ...counters.records import Capture, CounterRun
from ...errors import RunRecordError
from ...schema import Case
from ...store.counter_folder import read_counters, seal_of_counters
from ..resuming import content_of, require_incomplete, require_same, require_unaltered
from .stored import find_counters

SETTINGS = ("ncu_version", "metric_set", "metrics", "cache_control")
"""Fields of a record that must agree."""


class ResumedCaptures:
    """The captures of an earlier run.

    Raises:
        UsageError: the run is complete.
    """

    def __init__(self, run: CounterRun, folder: Path) -> None:
        require_incomplete(f"run {run.id}", complete=run.complete)
        self.run = run
        self.folder = folder
        self._cases = {case.key: content_of(case) for case in run.cases}
        self._captures = {(one.case_key, one.kernel, one.revision): one for one in run.captures}

    def require_same(self, new: CounterRun) -> None:
        """Refuse to go on on another machine, with other sources or settings; `new` is the record that goes on.

        Raises:
            UsageError: naming every difference.
        """
        known = self.run
        settings = [(name, getattr(known, name), getattr(new, name)) for name in SETTINGS]
        if new.base:  # another run that is put beside is no setting
            settings.append(("base", known.base, new.base))
        require_same(f"run {known.id}", known.environment, new.environment, settings, sources=(known.sources, new.sources))

    def taken(self, case: Case, kernel: str, revision: str, report: Path) -> Capture | None:
        """The capture of a kernel on a case, its report copied to `report`; None if it was not made, or of other parameters.

        Raises:
            RunRecordError: its report cannot be copied.
        """
        found = self._captures.get((case.key, kernel, revision))
        if found is None or self._cases.get(case.key) != content_of(case):
            return None
        if not found.report:
            return found
        try:
            shutil.copyfile(self.folder / found.report, report)
        except OSError as error:
            raise RunRecordError(f"--resume: {self.folder / found.report}: cannot be copied: {error.strerror or error}") from error
        return msgspec.structs.replace(found, report=report.name)


def resumed_captures(text: str, project: Project) -> ResumedCaptures:
    """The stopped run that `text` names.

    Raises:
        UsageError: it is complete, or unknown.
        RunRecordError: it cannot be read, or does not fit its seal.
    """
    folder = find_counters(text, project)
    run = read_counters(folder)
    require_unaltered(f"run {run.id}", seal_of_counters(folder), folder)
    return ResumedCaptures(run, folder)
