"""Whether boards of one host disturb each other: the same cases on one busy board, and on all boards at once.

Host cores, power and PCIe are shared.  Before times of several busy boards are trusted, an A/A comparison shows how much they change:
every kernel is its own control, on its own board.  A run on several boards then measures on no more of them at once than did no harm.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..device import Device
from ..device.boards import label_of
from ..errors import DeviceUnfitError, RunRecordError, UsageError
from ..naming import device_slug
from ..runner.case_kernels import CaseKernels, case_kernels, work_of
from ..runner.context import Reporter
from ..runner.run.command import RunRequest
from ..schema import Accuracy, Estimate, Status
from ..store.files import write_file
from ..store.record_files import encode_json
from ..verdict.baseline.yardsticks import median_of_logs
from .board_process import CaseLease, Received
from .boards import Board, Boards, setups_of

VERSION = 1
MOST_CASES = 8
"""Cases that are measured, of all lengths."""
FEWEST_CASES = 2
ROUNDS = 2
"""Measurements of a case on one busy board and on several, the second in the opposite order, so that a drift cancels."""
MOST_BIAS = {"cuda": 0.003, "cpu": 0.05}
"""The largest median change by other busy boards that does no harm: half of the smallest margin that a calibration of an H200 has
given, and the scatter of a CPU."""


class BusyBoards(msgspec.Struct, frozen=True, kw_only=True):
    """How times change while a number of boards measure at once."""

    busy: int
    """Boards that measured at once."""
    time: Estimate
    """Time with all of them busy over time alone: the median over kernels, cases and boards, with the interval of the sign test."""
    boards: dict[str, float]
    """The median of each board, by its label."""
    host: float | None = None
    """The host's time per call, with all of them busy over alone: the median; None where no timer tells."""
    comparisons: int = 0


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """An A/A measurement of the interference between the boards of one host."""

    version: int
    created: str
    """UTC, ISO 8601."""
    host: str
    device: str
    """`cuda` or `cpu`."""
    device_name: str
    boards: tuple[str, ...]
    """UUIDs."""
    cases: tuple[str, ...]
    sizes: tuple[BusyBoards, ...]
    """The fewest busy boards first."""
    between_boards: dict[str, float]
    """By label, the median time of a board alone over that of the first board."""

    def harmless(self, several: BusyBoards) -> bool:
        """Whether times on so many busy boards are those of one alone."""
        return abs(several.time.value - 1) <= MOST_BIAS[self.device]

    def most_at_once(self, boards: int) -> int:
        """How many of `boards` may measure at once; 1: the others only compile and check beside it."""
        above = [one for one in self.sizes if one.busy >= boards]
        if above and self.harmless(above[0]):
            return boards
        return max((one.busy for one in self.sizes if one.busy <= boards and self.harmless(one)), default=1)


def interference_file(results: Path, device_name: str) -> Path:
    """Where the measurement of this host lies."""
    return results / "interference" / f"{device_slug(device_name)}_{device_slug(platform.node() or 'host')}.json"


def load_interference(results: Path, device_name: str) -> Interference | None:
    """The measurement of this host; None if there is none.

    Raises:
        RunRecordError: it cannot be read.
    """
    file = interference_file(results, device_name)
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Interference, strict=False)  # "inf" is a number
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunRecordError(f"{file}: cannot be read: {error}; make it again with `fusebench calibrate --device all`") from error
    if found.version != VERSION:
        raise RunRecordError(f"{file}: version {found.version}, expected {VERSION}; make it again with `fusebench calibrate --device all`")
    return found


def measure_interference(request: RunRequest, devices: Sequence[Device], reporter: Reporter) -> tuple[Interference, Path]:
    """Measure how much busy boards change each other's times, and store it.

    Raises:
        UsageError: fewer than two boards, or no case with a kernel that can be timed.
        DeviceUnfitError: a board cannot measure: all are needed.
        KeyboardInterrupt: Ctrl-C; what was found is stored first, if it is of `FEWEST_CASES` cases or more.
    """
    if len(devices) < 2:
        raise UsageError("--device names one board, and interference needs two; name several, such as cuda:0,1")
    units = _chosen(request)
    if not units:
        raise UsageError("no case of the selection has a kernel that can be timed here")
    boards = Boards(setups_of(request, devices, units), warn=reporter.note, note=reporter.note, show=reporter.step)
    visits = _Visits(boards, request, reporter)
    interruption: KeyboardInterrupt | None = None
    reporter.begin()
    try:
        with boards:
            visits.all(list(units.values()))
    except KeyboardInterrupt as error:
        if len(_cases_of(visits.found)) < FEWEST_CASES:
            raise
        interruption = error
    finally:
        reporter.end()
    record = _record(visits.found, devices)
    file = interference_file(request.project.results, devices[0].name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, encode_json(msgspec.to_builtins(record)))
    if interruption is not None:
        reporter.note(f"interrupted after {len(record.cases)} of {len(units)} cases; what they showed is kept in {file}")
        raise interruption
    return record, file


def _chosen(request: RunRequest) -> dict[str, CaseKernels]:
    """A few cases from the shortest to the longest, each of other work; from both ends, so that what a budget allows covers both."""
    found = [case_kernels(request.collection, case, request.device.kind, request.options.kernel) for case in request.cases]
    works = {work_of(unit): unit for unit in reversed(found) if unit.baseline is not None}
    ordered = sorted(works.values(), key=lambda unit: (unit.facts.minimum_bytes, unit.case.key))
    last = max(1, min(MOST_CASES, len(ordered)) - 1)
    places = sorted({round(place * (len(ordered) - 1) / last) for place in range(min(MOST_CASES, len(ordered)))})
    alternating = [place for pair in zip(reversed(places), places, strict=True) for place in pair]
    return {ordered[place].case.key: ordered[place] for place in dict.fromkeys(alternating)}


class _Seen(msgspec.Struct, frozen=True):
    """The times of one case on one board, while `busy` boards measured."""

    busy: int
    label: str
    case: str
    times_us: dict[str, float]
    """By kernel, and `yardstick`."""
    host_us: dict[str, float]


class _Visits:
    """Measures cases on some boards at the same time."""

    def __init__(self, boards: Boards, request: RunRequest, reporter: Reporter) -> None:
        self._boards, self._request, self._reporter = boards, request, reporter
        self._passed: dict[str, dict[str, Accuracy]] = {}
        self._began = time.monotonic()
        self.found: list[_Seen] = []
        """Of finished cases."""

    def all(self, units: Sequence[CaseKernels]) -> None:
        """Every case, on one board and on several at once; the first visit of a case compiles and checks, and does not count."""
        while not all(board.ready for board in self._boards.boards):
            self._hear()
        for number, unit in enumerate(units):
            budget = self._request.budget_s
            if budget is not None and number >= FEWEST_CASES and time.monotonic() - self._began > budget:
                self._reporter.note(f"the budget of {budget:g} s ended after {number} of {len(units)} cases")
                break
            self._reporter.case(number + 1, len(units), unit.case, unit.shape)
            self._visit(self._boards.boards, unit)
            found: list[_Seen] = []
            for turn in range(ROUNDS):
                groups = list(self._groups())
                for group in groups if turn % 2 == 0 else reversed(groups):
                    found += self._visit(group, unit)
            self.found += found

    def _groups(self) -> Iterator[list[Board]]:
        """Each board alone; halves of four boards and more; all."""
        boards = self._boards.boards
        sizes = [1, *([len(boards) // 2] if len(boards) >= 4 else []), len(boards)]
        for size in sizes:
            yield from (boards[place : place + size] for place in range(0, len(boards) - size + 1, size))

    def _visit(self, group: Sequence[Board], unit: CaseKernels) -> list[_Seen]:
        """Measure one case on all boards of `group` at once."""
        lease = CaseLease(key=unit.case.key, passed=self._passed.get(unit.case.key, {}), wrong={}, seconds=None, expected_s=None)
        for board in group:
            board.give(lease, f"{unit.case.key}  {'alone' if len(group) == 1 else f'with {len(group)} boards busy'}")
        found: list[_Seen] = []
        while len(found) < len(group):
            found += [_seen(len(group), board, answer) for board, answer in self._hear()]
        return found

    def _hear(self) -> list[tuple[Board, Received]]:
        found = []
        for board, lease, answer in self._boards.answers():
            if board.unfit or (lease is not None and answer is None):
                raise DeviceUnfitError(
                    f"interference needs every board, and {board.label} cannot measure: {board.unfit or 'its process ended'}"
                )
            if isinstance(answer, Received):
                right = {one.kernel: one.accuracy for one in answer.results if one.accuracy is not None and one.accuracy.passed}
                self._passed.setdefault(answer.key, {}).update(right)
                found.append((board, answer))
        return found


def _seen(busy: int, board: Board, answer: Received) -> _Seen:
    timed = {one.kernel: one.measurement for one in answer.results if one.status is Status.MEASURED and one.measurement is not None}
    times = {kernel: one.time_us.value for kernel, one in timed.items()}
    if answer.summary is not None and answer.summary.stream_us is not None:
        times["yardstick"] = answer.summary.stream_us.value
    host = {kernel: one.host_us for kernel, one in timed.items() if one.host_us}
    return _Seen(busy, board.label, answer.key, times, host)


def _cases_of(seen: Sequence[_Seen]) -> tuple[str, ...]:
    """Their keys, in the order of measurement."""
    return tuple(dict.fromkeys(one.case for one in seen))


def _record(seen: Sequence[_Seen], devices: Sequence[Device]) -> Interference:
    labels = [label_of(device) for device in devices]
    times: dict[tuple[int, str, str, str], list[float]] = defaultdict(list)
    host: dict[tuple[int, str, str, str], list[float]] = defaultdict(list)
    for one in seen:
        for kernel, value in one.times_us.items():
            times[one.busy, one.label, one.case, kernel].append(math.log(value))
        for kernel, value in one.host_us.items():
            host[one.busy, one.label, one.case, kernel].append(math.log(value))
    sizes = []
    for busy in sorted({one.busy for one in seen} - {1}):
        changes = _changes(times, busy)
        everything = [log for logs in changes.values() for log in logs]
        if not everything:
            raise DeviceUnfitError("no kernel was timed both alone and beside other busy boards; look at the notes above")
        hosts = [log for logs in _changes(host, busy).values() for log in logs]
        sizes.append(
            BusyBoards(
                busy=busy,
                time=median_of_logs(everything),
                boards={label: math.exp(statistics.median(changes[label])) for label in labels if changes.get(label)},
                host=math.exp(statistics.median(hosts)) if hosts else None,
                comparisons=len(everything),
            )
        )
    return Interference(
        version=VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        device=devices[0].kind,
        device_name=devices[0].name,
        boards=tuple(device.uuid for device in devices),
        cases=_cases_of(seen),
        sizes=tuple(sizes),
        between_boards=_between(times, labels),
    )


def _changes(known: dict[tuple[int, str, str, str], list[float]], busy: int) -> dict[str, list[float]]:
    """By board, the log of each kernel's time on several busy boards over its time alone, on the same board."""
    found: dict[str, list[float]] = defaultdict(list)
    for (size, label, case, kernel), logs in known.items():
        alone = known.get((1, label, case, kernel))
        if size == busy and alone:
            found[label].append(statistics.fmean(logs) - statistics.fmean(alone))
    return found


def _between(times: dict[tuple[int, str, str, str], list[float]], labels: Sequence[str]) -> dict[str, float]:
    logs: dict[str, list[float]] = defaultdict(list)
    for (size, label, case, kernel), values in times.items():
        first = times.get((1, labels[0], case, kernel))
        if size == 1 and first:
            logs[label].append(statistics.fmean(values) - statistics.fmean(first))
    return {label: math.exp(statistics.median(logs[label])) for label in labels if logs.get(label)}


def interference_lines(record: Interference) -> list[str]:
    """The measurement in words, a line each."""
    lines = [f"interference on {record.host}: {len(record.boards)} x {record.device_name}, {len(record.cases)} cases"]
    for one in record.sizes:
        low, high = 100 * (one.time.low - 1), 100 * (one.time.high - 1)
        interval = f"{low:+.2f} % to {high:+.2f} %" if math.isfinite(high) else "too few for an interval"
        host = f", host time per call {100 * (one.host - 1):+.1f} %" if one.host is not None else ""
        each = ", ".join(f"{label} {100 * (value - 1):+.2f} %" for label, value in one.boards.items())
        lines.append(
            f"  {one.busy} busy at once: times {100 * (one.time.value - 1):+.2f} % "
            f"({interval}, {one.comparisons} comparisons){host}; {each}: "
            + ("harmless" if record.harmless(one) else f"more than {100 * MOST_BIAS[record.device]:.1f} % is a bias")
        )
    lines.append("  boards alone: " + ", ".join(f"{label} {100 * (value - 1):+.2f} %" for label, value in record.between_boards.items()))
    most = record.most_at_once(len(record.boards))
    lines.append(
        f"  `run --device all` measures on all {most} boards at once"
        if most == len(record.boards)
        else f"  `run --device all` measures on {most} of {len(record.boards)} boards at once; the others compile and check ahead"
    )
    return lines
