"""Calibrations of one device model put together: what several sessions found, one after another or on several devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from ..errors import UsageError
from ..stats.planting import PlantedTrial, Truth
from ..store.calibrations import CalibrationRecord, CaseComponents
from ..timing.pairs import in_same_buffers
from .calibration_summary import summed_up
from .calibration_visit import CalibrationOptions

Placed = TypeVar("Placed", PlantedTrial, Truth)


def require_same_method(record: CalibrationRecord, options: CalibrationOptions, timer: str) -> None:
    """Raise UsageError where trials made with `options` do not belong with those of `record`."""
    new = _named(
        timer=timer,
        cache=options.plan.cache,
        sampling=options.plan,
        looks=options.looks,
        same_buffers=in_same_buffers(options.plan.cache),
        processes=options.processes,
    )
    _require_same(record, new, "--add", "repeat its options, or leave --add out to replace it")


def joined(earlier: CalibrationRecord | None, new: CalibrationRecord, option: str = "--add") -> CalibrationRecord:
    """`earlier`, unless None, with the sessions of `new` after its own; environment and date are those of `new`.

    Args:
        option: what asks for it on the command line, for the message.

    Raises:
        UsageError: they are of two device models, were made in different ways, or `earlier` holds a session of `new` already.
    """
    if earlier is None:
        return summed_up(new)
    models = earlier.environment.device_name, new.environment.device_name
    if models[0] != models[1]:
        raise UsageError(f"{option}: a calibration of {models[1]} does not belong with one of {models[0]}")
    remedy = "repeat its options, or leave --add out to replace it" if option == "--add" else "they cannot be put together"
    _require_same(earlier, _method(new), option, remedy)
    _require_new(earlier, new, option)
    first = len(earlier.sessions)
    return summed_up(
        msgspec.structs.replace(
            new,
            sessions=(*earlier.sessions, *new.sessions),
            trials=(*earlier.trials, *_placed(new.trials, first)),
            truths=(*earlier.truths, *_placed(new.truths, first)),
            components=(*earlier.components, *_of_components(new.components, first)),
            warnings=(*earlier.warnings, *new.warnings),
        )
    )


def _named(*, same_buffers: bool, **method: Any) -> dict[str, Any]:
    """What makes a method, by its name in messages."""
    housing = "in the same buffers" if same_buffers else "in buffers of their own"
    return {
        "timer": method["timer"],
        "cache state": method["cache"],
        "sampling": method["sampling"],
        "looks": method["looks"],
        "arms of a pair": housing,
        "fresh processes": method["processes"],
    }


def _method(record: CalibrationRecord) -> dict[str, Any]:
    return _named(**{name: getattr(record, name) for name in ("timer", "cache", "sampling", "looks", "same_buffers", "processes")})


def _require_same(record: CalibrationRecord, method: dict[str, Any], option: str, remedy: str) -> None:
    differing = [f"{what}: {old} -> {method[what]}" for what, old in _method(record).items() if old != method[what]]
    if differing:
        raise UsageError(
            f"{option}: the stored calibration of {record.environment.device_name} was made another way ({'; '.join(differing)}); {remedy}"
        )


def _require_new(earlier: CalibrationRecord, new: CalibrationRecord, option: str) -> None:
    """Trials that count twice would make a rate look better known than it is."""
    for number, created in enumerate(new.sessions):
        trials = _session(new, number)
        if any(known == created and _session(earlier, place) == trials for place, known in enumerate(earlier.sessions)):
            raise UsageError(f"{option}: the stored calibration holds the session of {created} already; its trials would count twice")


def _session(record: CalibrationRecord, number: int) -> tuple[PlantedTrial, ...]:
    """The trials of one session, as if it were the only one."""
    return _placed((trial for trial in record.trials if trial.place.session == number), -number)


def _placed(found: Iterable[Placed], later: int) -> tuple[Placed, ...]:
    """The same in sessions that come so many later."""
    return tuple(msgspec.structs.replace(one, place=msgspec.structs.replace(one.place, session=one.place.session + later)) for one in found)


def _of_components(found: Iterable[CaseComponents], later: int) -> tuple[CaseComponents, ...]:
    return tuple(msgspec.structs.replace(one, session=one.session + later) for one in found)
