"""`fusebench calibrate` from its request to the stored record: sessions are measured here, or joined from other checkouts."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from ...config import Project, find_project
from ...errors import AlteredRecordError, UsageError
from ...registry.sources import roots_digest
from ...store.calibration_note import calibration_file
from ...store.calibrations import (
    CalibrationRecord,
    join_calibration,
    load_calibration,
    read_calibration,
    seal_of_calibration,
    write_calibration,
)
from ...store.files import not_written, require_writable, resume_command
from ...store.seal import ALTERED
from ..context import MeasuringContext, Reporter
from ..engine import Engine
from ..session import MeasuringRequest, hold, ops_of, signals_held
from ..workers.pool import WorkerPool
from .joining import joined, require_same_method, without_session
from .pilots import PILOT_REPLICATES, WORK_PER_SLOWDOWN
from .resuming import UNFINISHED, find_unfinished, read_state, write_state
from .strategy import CalibrationStrategy, Found
from .summary import record_of
from .targets import CALIBRATION_KERNELS, OWN_OP, CalibrationTarget, fewest_first
from .visit import CalibrationOptions

WHAT_TO_NAME = "name the results/calibration/<device>.json of another checkout"


class CalibrationRequest(MeasuringRequest, frozen=True, kw_only=True):
    """What to measure, and how."""

    project: Project
    roots: tuple[Path, ...]
    """Kernels folders of the targets, beside fusebench's own."""
    excluded: Mapping[str, str] = {}
    """Files that no worker may import, each with the reason."""
    targets: Sequence[CalibrationTarget]
    options: CalibrationOptions
    add: bool = False
    """Whether the session joins the stored sessions instead of replacing them."""
    force: bool = False
    """Whether it may replace a calibration that stands on more comparisons."""
    resume: str | None = None
    """A stopped calibration to go on with: a folder, its name or `latest`."""
    command: str = "fusebench calibrate"
    """The command line, for messages."""

    @property
    def comparisons(self) -> int:
        """A/A comparisons that it will make, unless a budget ends it earlier."""
        return len(self.targets) * self.options.passes * self.options.identical


CALL_SECONDS = 0.36e-3
"""One timed call on an H200 with all that it costs: a stored session of 48 visits to 24 targets made some 4.3 million in 1555 s."""
USUAL_REPLICATES = 24, 16
"""Of a pair until it is decided, and of a finding in each confirming process: about what that session took."""


def estimated_calls(request: CalibrationRequest) -> int:
    """The timed calls that the calibration makes, roughly: pilots, judgement, confirmation and ground truths."""
    options, targets = request.options, len(request.targets)
    rounds, sizes = options.plan.rounds, len(options.slowdowns)
    judged, confirmed = USUAL_REPLICATES
    pilot = (1 + sizes * (len(WORK_PER_SLOWDOWN) - 1)) * PILOT_REPLICATES
    visit = (options.identical + sizes * options.injected) * judged + options.processes * sizes * options.injected * confirmed
    truth = options.processes * (1 + sizes) * options.plan.replicates
    return 2 * rounds * targets * (pilot + options.passes * visit + truth)


def planned_words(request: CalibrationRequest) -> str:
    """The plan of a calibration: targets, share of real kernels, A/A comparisons, and on a GPU its time."""
    targets = request.targets
    real = sum(target.case.op != OWN_OP for target in targets)
    words = f"{len(targets)} targets, {100 * (real / len(targets)):.0f} % of them real kernels; {request.comparisons} A/A comparisons"
    if request.device.kind != "cuda":
        return words
    return f"{words}; some {estimated_calls(request) * CALL_SECONDS / 60:.0f} min by the time of an H200's calls"


def measure_calibration(request: CalibrationRequest, reporter: Reporter) -> tuple[Found, CalibrationRecord, Path]:
    """Measure one session and store it; what it found, the record of the device model, and its file.

    Raises:
        UsageError: the stored calibration was made another way or stands on more comparisons, or its folder takes no file.
        RunRecordError: the stored calibration cannot be read.
        RecordNotWrittenError: the disk is full; what was written before stays.
        DeviceUnfitError: the device is locked or busy, or proved unfit before anything was measured.
        KeyboardInterrupt: before the first visit was over.
    """
    project, device, options = request.project, request.device, request.options
    # A calibration that cannot be read, and a folder that takes none, are found before anything is measured.
    earlier = load_calibration(project.results, device.name)
    require_writable(calibration_file(project.results, device.name).parent)
    stopped = find_unfinished(request.resume, project) if request.resume is not None else None
    if request.add and earlier is not None:
        _require_unaltered(calibration_file(project.results, device.name), "--add")
        require_same_method(earlier, options, earlier.timer if request.timer == "auto" else request.timer)
    elif earlier is not None and not request.force:
        _require_no_fewer(request, earlier)
    roots = (CALIBRATION_KERNELS, *request.roots)
    ops = ops_of([target.case for target in request.targets])
    with (
        hold(device, reporter, wait_s=request.wait_s) as warnings,
        WorkerPool(device, roots, request.silence_s, ops=ops, timer=request.timer, excluded=request.excluded) as pool,
    ):
        for warning in warnings:
            reporter.note(warning)
        resumed = read_state(stopped) if stopped is not None else None  # under the lock: nobody writes it any more
        spent = resumed.spending if resumed is not None else None
        context = MeasuringContext(device, project.root, reporter, pool=pool, plan=options.plan, spent=spent)
        sources = roots_digest(roots)
        targets = fewest_first(request.targets, _measured(earlier) if request.add else {})
        if resumed is not None:
            options = msgspec.structs.replace(options, pilots_ahead=resumed.options.pilots_ahead)  # it follows from the budget
            order = {target.name: place for place, target in enumerate(resumed.targets)}
            targets = sorted(request.targets, key=lambda target: order.get(target.name, len(order)))
            resumed.require_same(context.environment_at_start, options, targets, request.timer, sources)
            context.created = datetime.fromisoformat(resumed.created)
        strategy = CalibrationStrategy(context, options, resumed)
        parent = calibration_file(project.results, device.name).parent / UNFINISHED
        unfinished = stopped if stopped is not None else parent / f"{context.created:%Y%m%dT%H%M%SZ}_{os.getpid()}"

        def keep() -> None:
            """Have the finished visits on disk before the next one begins: a record of its own, which `--join` takes, and the state."""
            if strategy.begun:
                with told_of_full_disk(unfinished, request.command):
                    write_calibration(unfinished, record_of(strategy.record(complete=False), options, context.environment_at_start))
                    write_state(unfinished, strategy.state(sources))

        engine = Engine(strategy, request.budget_s, on_unit=keep)
        engine.run(targets)
        found = engine.record()
    new = record_of(found, options, context.environment_at_start)

    def join(stored: CalibrationRecord | None) -> CalibrationRecord:
        return joined(without_session(stored, new) if request.add and resumed is not None else stored if request.add else None, new)

    with signals_held(), told_of_full_disk(unfinished, request.command):
        record, file = join_calibration(project.results, device.name, join)
        if strategy.interrupted:
            reporter.note(f"go on with it by: {resume_command(request.command, unfinished)}")
        else:
            shutil.rmtree(unfinished, ignore_errors=True)
            with suppress(OSError):  # that of another session is there
                unfinished.parent.rmdir()
    return found, record, file


@contextmanager
def told_of_full_disk(unfinished: Path, command: str) -> Iterator[None]:
    """Say what is kept, and where, if the body cannot write.

    Raises:
        RecordNotWrittenError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise not_written(unfinished, error, command) from error


def _require_unaltered(file: Path, option: str) -> None:
    """Refuse to seal trials anew that do not fit their seal."""
    if altered := seal_of_calibration(file).altered:
        raise AlteredRecordError(
            f"{option}: {file} {ALTERED}: {altered}; nothing was changed: restore it from a copy, or delete it and calibrate again"
        )


def _measured(record: CalibrationRecord | None) -> Mapping[tuple[str, str], int]:
    """By case and kernel, the stored A/A comparisons."""
    equal = [trial.place for trial in record.trials if trial.place.nominal == 0] if record is not None else []
    return Counter((place.case, place.kernel) for place in equal)


def _require_no_fewer(request: CalibrationRequest, earlier: CalibrationRecord) -> None:
    stored, planned = earlier.note.comparisons, request.comparisons
    if planned < stored:
        file = calibration_file(request.project.results, request.device.name)
        raise UsageError(
            f"{file} stands on {stored} A/A comparisons, and this calibration would replace it by {planned}: nothing was measured; "
            "add to it with --add, replace it with --force, or measure in a project of its own (`fusebench init DIR`)"
        )


def join_files(files: Sequence[Path]) -> tuple[CalibrationRecord, Path]:
    """Put the sessions of each file into the stored calibration of its device model; all of them, or none.

    Raises:
        UsageError: a file that is not there, or whose sessions do not belong with those stored, or are stored already; or the folder takes
            no calibration.
        RunRecordError: a calibration that cannot be read.
    """
    project = find_project()
    found: list[CalibrationRecord] = []
    for file in files:
        record = read_calibration(file, instead=WHAT_TO_NAME)
        if record is None:
            raise UsageError(f"--join: there is no file {file}; {WHAT_TO_NAME}")
        _require_unaltered(file, "--join")
        found.append(record)
    device = found[0].environment.device_name
    stored = calibration_file(project.results, device)
    require_writable(stored.parent)
    _require_unaltered(stored, "--join")

    def join(stored: CalibrationRecord | None) -> CalibrationRecord:
        for record in found:
            stored = joined(stored, record, "--join")
        assert stored is not None, "at least one file is given"
        return stored

    return join_calibration(project.results, device, join)
