"""Makes the record of a device model from its calibrations, and the note that every report prints."""

from __future__ import annotations

import msgspec

from ...schema import CalibrationNote, Environment, VisibleEffect
from ...store.calibrations import CalibrationRecord
from ...timing.pairs import in_same_buffers
from ...verdict.calibration import Calibration, ClassSummary, as_trials, summarise, uncounted
from .strategy import Found
from .visit import CalibrationOptions

NOT_COUNTED = "not counted: "


def summary_of(record: CalibrationRecord) -> Calibration:
    """False-alarm rate, detection rates and scatter of replicates by class of calls: by duration, and one launch apart from several."""
    return summarise(as_trials(record.trials, record.ground_truths))


def record_of(found: Found, options: CalibrationOptions, environment: Environment) -> CalibrationRecord:
    """The record of one calibration, as its only session."""
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
        sessions=(found.created,),
        trials=found.trials,
        ground_truths=found.ground_truths,
        components=found.components,
        warnings=found.warnings,
    )
    return summed_up(record)


def summed_up(record: CalibrationRecord) -> CalibrationRecord:
    """The record with its note, and warnings for uncounted trials, both computed from all trials by the current rules."""
    kept = [text for text in dict.fromkeys(record.warnings) if not text.startswith(NOT_COUNTED)]
    left_out = [f"{NOT_COUNTED}{text}" for text in uncounted(record.trials, record.ground_truths)]
    return msgspec.structs.replace(record, warnings=(*kept, *left_out), note=_note(record))


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
    """The claim of reports for one class of calls."""
    return VisibleEffect(
        low_us=one.low_us,
        high_us=one.high_us,
        comparisons=one.false_regressions.total,
        smallest=one.smallest_found,
        largest_injected=one.largest_tried,
        several_launches=one.several_launches,
    )
