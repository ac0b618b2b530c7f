"""From what calibrations found to the record of a device model, and to the note that every report prints."""

from __future__ import annotations

import msgspec

from ..errors import UsageError
from ..schema import CalibrationNote, Environment, VisibleEffect
from ..stats.calibration import Calibration, ClassSummary, summarise
from ..stats.planting import as_trials, uncounted
from ..store.calibrations import CalibrationRecord
from ..timing.pairs import in_same_buffers
from .calibrating import Found
from .calibration_visit import CalibrationOptions

NOT_COUNTED = "not counted: "


def summary_of(record: CalibrationRecord) -> Calibration:
    """False-alarm rate, shares found and scatter of replicates, by class of duration, calls of one launch and of several apart."""
    return summarise(as_trials(record.trials, record.truths))


def require_same_method(record: CalibrationRecord, options: CalibrationOptions, timer: str) -> None:
    """Raise UsageError where trials made with `options` do not belong with those of `record`."""
    pairs = (
        ("timer", record.timer, timer),
        ("cache state", record.cache, options.plan.cache),
        ("sampling", record.sampling, options.plan),
        ("looks", record.looks, options.looks),
        ("arms of a pair", _housing(record.same_buffers), _housing(in_same_buffers(options.plan.cache))),
        ("fresh processes", record.processes, options.processes),
    )
    differing = [f"{what}: {old} -> {new}" for what, old, new in pairs if old != new]
    if differing:
        raise UsageError(
            f"--add: the stored calibration of {record.environment.device_name} was made another way ({'; '.join(differing)}); "
            "repeat its options, or leave --add out to replace it"
        )


def _housing(same: bool) -> str:
    return "in the same buffers" if same else "in buffers of their own"


def combined(found: Found, options: CalibrationOptions, environment: Environment, earlier: CalibrationRecord | None) -> CalibrationRecord:
    """The record with what was found now, after what was found `earlier`.

    Raises:
        UsageError: as `require_same_method`.
    """
    if earlier is not None:
        require_same_method(earlier, options, found.timer)
        found = _in_session(found, len(earlier.sessions))
    record = CalibrationRecord(
        note=CalibrationNote(
            device_name=environment.device_name,
            created=found.created,
            timer=found.timer,
            cache=options.plan.cache,
            comparisons=0,
            false_regressions=0,
            false_regression_high=1.0,
            effects=(),
        ),
        environment=environment,
        timer=found.timer,
        cache=options.plan.cache,
        looks=options.looks,
        sampling=options.plan,
        same_buffers=in_same_buffers(options.plan.cache),
        processes=options.processes,
        sessions=(*(earlier.sessions if earlier is not None else ()), found.created),
        trials=(*(earlier.trials if earlier is not None else ()), *found.trials),
        truths=(*(earlier.truths if earlier is not None else ()), *found.truths),
        components=(*(earlier.components if earlier is not None else ()), *found.components),
        warnings=(*(earlier.warnings if earlier is not None else ()), *found.warnings),
    )
    return summed_up(record)


def summed_up(record: CalibrationRecord) -> CalibrationRecord:
    """The record with the note, and the warnings of what is not counted, that today's rules make of all its trials."""
    kept = [text for text in dict.fromkeys(record.warnings) if not text.startswith(NOT_COUNTED)]
    left_out = [f"{NOT_COUNTED}{text}" for text in uncounted(record.trials, record.truths)]
    return msgspec.structs.replace(record, warnings=(*kept, *left_out), note=_note(record))


def _in_session(found: Found, session: int) -> Found:
    """`found` as that session's: only when it is stored is known how many came before."""
    return msgspec.structs.replace(
        found,
        trials=tuple(msgspec.structs.replace(one, place=msgspec.structs.replace(one.place, session=session)) for one in found.trials),
        truths=tuple(msgspec.structs.replace(one, place=msgspec.structs.replace(one.place, session=session)) for one in found.truths),
        components=tuple(msgspec.structs.replace(one, session=session) for one in found.components),
    )


def _note(record: CalibrationRecord) -> CalibrationNote:
    summary = summary_of(record)
    alarms = summary.false_regressions
    return msgspec.structs.replace(
        record.note,
        comparisons=alarms.total,
        false_regressions=alarms.count,
        false_regression_high=alarms.high,
        effects=tuple(claim_of(one) for one in summary.classes),
    )


def claim_of(one: ClassSummary) -> VisibleEffect:
    """What reports claim of a class."""
    return VisibleEffect(
        low_us=one.low_us,
        high_us=one.high_us,
        comparisons=one.false_regressions.total,
        smallest=one.smallest_found,
        largest_planted=one.largest_tried,
        several_launches=one.several_launches,
    )
