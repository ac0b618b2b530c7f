"""The state of a calibration in progress, on disk after every visit, and its resumption.

The record of the finished visits holds verdicts, which depend on all visits of a pass; the state holds the measurements that they come
from.  It is one file, `state`: the SHA-256 of its content in hexadecimal, then the content as MessagePack.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...config import Project
from ...errors import AlteredRecordError, RunRecordError, UsageError
from ...schema import Environment, InjectionPlace, Spending
from ...store.files import write_file
from ...store.finding import LATEST
from ...store.seal import ALTERED, digest
from ..resuming import require_same, same_timers
from .ground_truth import GroundTruths
from .pilots import Pilot
from .targets import CalibrationTarget
from .visit import CalibrationOptions, Pending

STATE_FILE = "state"
UNFINISHED = "unfinished"
"""Folder beside the calibrations with a folder per calibration in progress."""
STATE_VERSION = 1
_REMEDY = "remove its folder, and calibrate again"


class StoredGroundTruths(msgspec.Struct, frozen=True, kw_only=True):
    """`GroundTruths` as lists: each place with its logs and times."""

    place: int
    """Place of the target among all targets."""
    logs: list[tuple[InjectionPlace, list[float]]]
    times_us: list[tuple[InjectionPlace, list[float]]]
    rounds: list[list[list[float]]]


class CalibrationState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the visits so far have found."""

    version: int = STATE_VERSION
    created: str
    timer: str
    environment: Environment
    sources: str
    """SHA-256 over every file of the kernels folders."""
    options: CalibrationOptions
    targets: list[CalibrationTarget]
    pilots: dict[int, Pilot]
    done: list[tuple[int, int]]
    """Pass and target of each visit that is over."""
    pending: list[Pending]
    ground_truths: list[StoredGroundTruths]
    warnings: list[str]
    spending: Spending

    def require_same(
        self, environment: Environment, options: CalibrationOptions, targets: list[CalibrationTarget], timer: str, sources: str
    ) -> None:
        """Refuse to go on on another machine, with other kernels, or with other settings.

        Raises:
            UsageError: naming every difference.
        """
        settings: list[tuple[str, object, object]] = [
            (name, getattr(self.options, name), getattr(options, name)) for name in CalibrationOptions.__struct_fields__
        ]
        settings.append(("kernels", [one.name for one in self.targets], [one.name for one in targets]))
        settings += [("cases of the kernels", "those of then", "others")] if self.targets != targets else []
        settings += same_timers(self.timer, timer)
        require_same(f"the calibration of {self.created}", self.environment, environment, settings, sources=(self.sources, sources))

    def known_ground_truths(self) -> dict[int, GroundTruths]:
        """By place of the target."""
        found = {}
        for one in self.ground_truths:
            known = GroundTruths(rounds=list(one.rounds))
            known.logs.update(one.logs)
            known.times_us.update(one.times_us)
            found[one.place] = known
        return found


def stored_ground_truths(place: int, found: GroundTruths) -> StoredGroundTruths:
    """`found` as it is written."""
    return StoredGroundTruths(place=place, logs=[*found.logs.items()], times_us=[*found.times_us.items()], rounds=found.rounds)


def write_state(folder: Path, state: CalibrationState) -> None:
    """Replace the state in `folder` at once."""
    content = msgspec.msgpack.encode(state)
    write_file(folder / STATE_FILE, digest(content).encode() + content)


def read_state(folder: Path) -> CalibrationState:
    """The state in `folder`.

    Raises:
        RunRecordError: there is none, it is garbled, or of another version; AlteredRecordError where it does not fit its digest.
    """
    file = folder / STATE_FILE
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RunRecordError(
            f"{file}: cannot be read: {error.strerror or error}; expected the folder of a `fusebench calibrate` that was stopped"
        ) from error
    if content[:64] != digest(content[64:]).encode():
        raise AlteredRecordError(f"{file} {ALTERED}: it does not fit its digest; {_REMEDY}")
    try:
        state = msgspec.msgpack.decode(content[64:], type=CalibrationState)
    except (ValueError, OverflowError, RecursionError) as error:
        raise RunRecordError(f"{file}: not a calibration that was stopped: {error}; {_REMEDY}") from error
    if state.version != STATE_VERSION:
        raise RunRecordError(f"{file}: version {state.version}; this fusebench reads version {STATE_VERSION}; {_REMEDY}")
    return state


def find_unfinished(text: str, project: Project) -> Path:
    """The folder of the stopped calibration that `text` names: its path, its name, or `latest`.

    Raises:
        UsageError: there is none.
    """
    parent = project.results / "calibration" / UNFINISHED
    there = sorted(one for one in parent.iterdir() if (one / STATE_FILE).is_file()) if parent.is_dir() else []
    fitting = there[-1:] if text == LATEST else [one for one in (Path(text).expanduser(), parent / text) if (one / STATE_FILE).is_file()]
    if not fitting:
        names = ", ".join(one.name for one in there) or "none"
        raise UsageError(f"--resume {text}: no calibration was stopped there; in {parent} lie: {names}")
    return fitting[0]
