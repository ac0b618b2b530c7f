"""Joins the calibrations of one device model: several sessions, one after another or on several devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from ...errors import UsageError
from ...schema import CacheState, GroundTruth, InjectedTrial, SamplingPlan
from ...stats.sequential import Plan
from ...store.calibrations import CalibrationRecord, CaseComponents
from ...timing.pairs import in_same_buffers
from .summary import summed_up
from .visit import CalibrationOptions

Placed = TypeVar("Placed", InjectedTrial, GroundTruth)


_REMEDIES = {"--add": "repeat its options, or leave --add out to replace it", "--join": "they cannot be put together"}
"""By the option that joins, the remedy for trials that were made by different methods."""


class _Method(NamedTuple):
    """The method of a session: it must agree between trials that are counted together."""

    timer: str
    cache: CacheState
    sampling: SamplingPlan
    looks: Plan
    same_buffers: bool
    processes: int

    def named(self) -> dict[str, object]:
        """By its name in messages."""
        return {
            "timer": self.timer,
            "cache state": self.cache,
            "sampling": self.sampling,
            "looks": self.looks,
            "arms of a pair": "in the same buffers" if self.same_buffers else "in buffers of their own",
            "fresh processes": self.processes,
        }


def require_same_method(record: CalibrationRecord, options: CalibrationOptions, timer: str) -> None:
    """Raise UsageError where trials made with `options` do not belong with those of `record`."""
    plan = options.plan
    new = _Method(timer, plan.cache, plan, options.looks, in_same_buffers(plan.cache), options.processes)
    _require_same(record, new, "--add")


def joined(earlier: CalibrationRecord | None, new: CalibrationRecord, option: str = "--add") -> CalibrationRecord:
    """`earlier`, unless None, with the sessions of `new` after its own; environment and date are those of `new`.

    Args:
        option: the command line option that joins, `--add` or `--join`, for the message.

    Raises:
        UsageError: they are of two device models, were made in different ways, or `earlier` holds a session of `new` already.
    """
    if earlier is None:
        return summed_up(new)
    models = earlier.environment.device_name, new.environment.device_name
    if models[0] != models[1]:
        raise UsageError(f"{option}: a calibration of {models[1]} does not belong with one of {models[0]}")
    _require_same(earlier, _method(new), option)
    _require_new(earlier, new, option)
    first = len(earlier.sessions)
    return summed_up(
        msgspec.structs.replace(
            new,
            sessions=(*earlier.sessions, *new.sessions),
            trials=(*earlier.trials, *_placed(new.trials, first)),
            ground_truths=(*earlier.ground_truths, *_placed(new.ground_truths, first)),
            components=(*earlier.components, *_of_components(new.components, first)),
            warnings=(*earlier.warnings, *new.warnings),
        )
    )


def without_session(record: CalibrationRecord | None, new: CalibrationRecord) -> CalibrationRecord | None:
    """`record` without the part of the one session of `new` that it holds already, because that session was stopped and gone on with.

    None where nothing else is left.
    """
    if record is None:
        return None
    measured = {(trial.place, trial.change) for trial in new.trials}
    parts = [
        number
        for number, created in enumerate(record.sessions)
        if created in new.sessions and {(trial.place, trial.change) for trial in _session(record, number)} <= measured
    ]
    if not parts:
        return record
    left = {number: place for place, number in enumerate(one for one in range(len(record.sessions)) if one not in parts)}
    return (
        msgspec.structs.replace(
            record,
            sessions=tuple(created for number, created in enumerate(record.sessions) if number in left),
            trials=tuple(moved for number in left for moved in _placed(_session(record, number), left[number])),
            ground_truths=tuple(
                moved
                for number in left
                for moved in _placed((one for one in record.ground_truths if one.place.session == number), left[number] - number)
            ),
            components=tuple(msgspec.structs.replace(one, session=left[one.session]) for one in record.components if one.session in left),
        )
        if left
        else None
    )


def _method(record: CalibrationRecord) -> _Method:
    return _Method(record.timer, record.cache, record.sampling, record.looks, record.same_buffers, record.processes)


def _require_same(record: CalibrationRecord, method: _Method, option: str) -> None:
    new = method.named()
    differing = [f"{what}: {old} -> {new[what]}" for what, old in _method(record).named().items() if old != new[what]]
    if differing:
        raise UsageError(
            f"{option}: the stored calibration of {record.environment.device_name} was made another way ({'; '.join(differing)}); "
            f"{_REMEDIES[option]}"
        )


def _require_new(earlier: CalibrationRecord, new: CalibrationRecord, option: str) -> None:
    """Refuse a session that is stored already: trials that count twice would make a rate look better known than it is."""
    for number, created in enumerate(new.sessions):
        trials = _session(new, number)
        if any(known == created and _session(earlier, place) == trials for place, known in enumerate(earlier.sessions)):
            raise UsageError(f"{option}: the stored calibration holds the session of {created} already; its trials would count twice")


def _session(record: CalibrationRecord, number: int) -> tuple[InjectedTrial, ...]:
    """The trials of one session, as if it were the only one."""
    return _placed((trial for trial in record.trials if trial.place.session == number), -number)


def _placed(found: Iterable[Placed], later: int) -> tuple[Placed, ...]:
    """The same, with session numbers raised by `later`."""
    return tuple(msgspec.structs.replace(one, place=msgspec.structs.replace(one.place, session=one.place.session + later)) for one in found)


def _of_components(found: Iterable[CaseComponents], later: int) -> tuple[CaseComponents, ...]:
    return tuple(msgspec.structs.replace(one, session=one.session + later) for one in found)
