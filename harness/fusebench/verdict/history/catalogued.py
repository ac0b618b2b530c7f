"""A history from a catalogue: years of nightlies of a device model, thousands of series at once.

`series.series_of` and `shifts.find_shifts` read whole records and compare with random orders; this reads columns and uses
`stats.segmentation`.  Runs of other boards, drivers, timers and yardsticks stay in a series: `causes` tells their changes from the code's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from ...errors import UnknownNameError
from ...schema import CacheState, Environment, Run, SamplingPlan, boards_of
from ...stats.changepoint import SMALLEST_PART, ChangePoint, levels
from ...stats.fdr import DEFAULT_RATE, select
from ...stats.segmentation import Level
from .causes import Place, around, explain, moved_near
from .dividing import Divide, at_once
from .selected import FIGURES, Selected
from .series import Figure, Series, Snapshot
from .shifts import FLOOR_US, Track, adjusted_of, shifts_of, until

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

    from ...store.catalogue.query import Catalogue

_NEEDED = """run, created, cache, "commit", dirty, board, driver, cuda, torch, triton, ptxas, fusebench, timer, device, suite, "case",
kernel, params, gating, time_us, code, yardstick"""
_BESIDE_TIME = {Figure.SOL: ", limit_us", Figure.SPEEDUP: ", speedup", Figure.RAW: ""}
"""The column that each figure needs, too."""
_FACTS = ("commit", "dirty", "board", "driver", "cuda", "torch", "triton", "ptxas", "fusebench", "timer")


class DeviceHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The series of one device model and their changes."""

    device: str
    runs: list[Snapshot]
    tracks: list[Track]


def histories(
    catalogue: Catalogue, selected: Selected, *, margin: float, rate: float = DEFAULT_RATE, divide: Divide | None = None
) -> list[DeviceHistory]:
    """The history of every device model in `catalogue`.

    Args:
        divide: divides the series of a device model; `at_once` unless given.

    Raises:
        UnknownNameError: nothing in the catalogue answers to an option.
        CatalogueError: the catalogue is empty, or cannot be read, or a process of `side_by_side` was killed.
    """
    with catalogue.connect() as connection:
        condition, values = selected.where()
        rows = f"results WHERE {condition}"
        if selected.kernel is not None or selected.case is not None:  # a small part, which is then read once and not five times
            connection.execute(f"CREATE TEMP TABLE picked AS SELECT {_NEEDED}{_BESIDE_TIME[selected.figure]} FROM {rows}", values)
            rows, values = "picked WHERE true", []
        found = connection.execute(f"SELECT DISTINCT device FROM {rows} ORDER BY device", values).fetchall()
        if not found:
            _say_unknown(connection, selected)
        models = [
            _Model(connection=connection, device=str(device), number=number, rows=f"{rows} AND device = ?", values=[*values, device])
            for number, (device,) in enumerate(found)
        ]
        read = [_read(model, selected=selected, divide=divide or at_once, rate=rate) for model in models]
        return [_judged(one, margin=margin, rate=rate) for one in read]


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one device model."""

    connection: Any
    device: str
    number: int
    """Its place among the device models."""
    rows: str
    """Follows FROM in SQL, and takes `values`."""
    values: list[Any]

    def select(self, columns: str, after: str = "") -> duckdb.DuckDBPyConnection:
        """Columns of the rows."""
        found: duckdb.DuckDBPyConnection = self.connection.execute(f"SELECT {columns} FROM {self.rows} {after}", self.values)
        return found

    def joined(self, columns: str, more: str = "") -> duckdb.DuckDBPyConnection:
        """Columns of the rows `q` that belong to a series and a run: `s.row` and `r.place` are their numbers."""
        found: duckdb.DuckDBPyConnection = self.connection.execute(
            f"SELECT {columns} FROM (SELECT * FROM {self.rows}) AS q JOIN {self.named('runs')} AS r ON q.run = r.run "
            f'JOIN {self.named("series")} AS s ON q.suite = s.suite AND q."case" = s."case" AND q.kernel = s.kernel '
            f"AND q.params = s.params {more}",
            self.values,
        )
        return found

    def named(self, table: str) -> str:
        """The name of a temporary table of this model."""
        return f"{table}_{self.number}"

    def keep(self, table: str, columns: dict[str, tuple[str, list[Any]]]) -> None:
        """Make a temporary table of `columns`: SQL type and values by name.

        Lists as parameters, because a registered Arrow table makes DuckDB import pandas.
        """
        cells = ", ".join(f'unnest(?::{kind}[]) AS "{column}"' for column, (kind, _) in columns.items())
        values = [values for _, values in columns.values()]
        self.connection.execute(f"CREATE TEMP TABLE {self.named(table)} AS SELECT {cells}", values)


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """The series of one device model as read, while they are divided."""

    model: _Model
    runs: list[Snapshot]
    series: list[Series]
    times: Any
    """Microseconds, one row per series and one column per run."""
    figures: Any
    long: list[int]
    """Rows of the series that are long enough to divide."""
    division: Any
    """The `Division` of these rows; None without any."""
    on_boards: OnBoards


def _read(model: _Model, *, selected: Selected, divide: Divide, rate: float) -> _Read:
    """Read the series of one device model, and have them divided."""
    runs = _runs(model, last=selected.last)
    keys = model.select(
        'suite, "case", kernel, arg_max(params, created), arg_max(gating, created), max(created)',
        'GROUP BY suite, "case", kernel ORDER BY suite, "case", kernel',
    ).fetchall()
    newest: dict[tuple[str, str], tuple[datetime, str]] = {}
    for suite, case, _, params, _, created in keys:
        newest[suite, case] = max(newest.get((suite, case), (created, params)), (created, params))
    times, figures = _matrices(model, figure=selected.figure, runs=runs, keys=keys, newest=newest)
    series = [
        Series(
            suite=suite,
            case=case,
            kernel=kernel,
            figure=selected.figure,
            places=(),
            values=cast("Any", figures[row][np.isfinite(figures[row])]),  # as floats of Python, millions would not fit into memory
            times_us=(),
            gating=bool(gating) and created == newest[suite, case][0],
        )
        for row, (suite, case, kernel, _, gating, created) in enumerate(keys)
    ]
    names, boards = _boards(model, runs=runs, series=len(keys))
    long = [row for row, one in enumerate(series) if len(one.values) >= 2 * SMALLEST_PART]
    return _Read(
        model=model,
        runs=runs,
        series=series,
        times=times,
        figures=figures,
        long=long,
        division=divide(figures[long], boards, Level(rate)) if long else None,
        on_boards=OnBoards([one.run for one in runs], names, boards),
    )


def _judged(read: _Read, *, margin: float, rate: float) -> DeviceHistory:
    """The changes of the series, with their causes."""
    tracks = _explained(read, _tracks(read, margin=margin, rate=rate), margin=margin)
    return DeviceHistory(device=read.model.device, runs=read.runs, tracks=tracks)


def _boards(model: _Model, *, runs: Sequence[Snapshot], series: int) -> tuple[list[str], NDArray[np.int64]]:
    """The names of all boards, and the number of each run's board: one row of all runs, or, where a run is of several boards, one row per
    series, since each case is of one board."""
    by_run = [boards_of(one.run.environment.device_uuid) for one in runs]
    names = sorted({board for boards in by_run for board in boards})
    numbers = {board: number for number, board in enumerate(names)}
    first = np.array([numbers[boards[0]] for boards in by_run], dtype=np.int64)
    several = [place for place, boards in enumerate(by_run) if len(boards) > 1]
    if not several:
        return names, first
    model.keep("boards", {"board": ("VARCHAR", names), "number": ("INT", list(range(len(names))))})
    model.keep("several", {"place": ("INT", several)})
    found = model.joined(
        "s.row, r.place, b.number",
        f"JOIN {model.named('several')} AS o ON o.place = r.place JOIN {model.named('boards')} AS b ON q.board = b.board",
    ).fetchnumpy()
    boards = np.repeat(first[None, :], series, axis=0)
    boards[found["row"], found["place"]] = found["number"]
    return names, boards


class OnBoards:
    """The runs as a series sees them: each on the board that measured the series."""

    def __init__(self, runs: Sequence[Run], names: Sequence[str], boards: NDArray[np.int64]) -> None:
        self._runs, self._names, self._boards = runs, names, boards

    def of(self, row: int) -> tuple[Sequence[Run], NDArray[np.int64]]:
        """The runs, as the series in `row` sees them, and the numbers of their boards."""
        if self._boards.ndim == 1:
            return self._runs, self._boards
        numbers = self._boards[row]
        runs = [
            msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, device_uuid=self._names[number]))
            for run, number in zip(self._runs, numbers, strict=True)
        ]
        return runs, numbers


def _runs(model: _Model, *, last: int | None) -> list[Snapshot]:
    """The runs, in order of time, with the cache state of the newest."""
    facts = ", ".join(f'any_value("{name}")' if name != "board" else "string_agg(DISTINCT board, ',' ORDER BY board)" for name in _FACTS)
    found = model.select(f"run, created, cache, {facts}", "GROUP BY run, created, cache ORDER BY created, run").fetchall()
    alike = [row for row in found if row[2] == found[-1][2]]
    return [_snapshot(model.device, row) for row in (alike if last is None else alike[-last:])]


def _snapshot(device: str, row: tuple[Any, ...]) -> Snapshot:
    run_id, created, cache, *values = row
    facts = dict(zip(_FACTS, values, strict=True))
    environment = Environment(
        device="cuda",
        device_name=device,
        device_uuid=facts["board"] or "",
        git_commit=facts["commit"] or "",
        git_dirty=bool(facts["dirty"]),
        python="",
        platform="",
        driver=facts["driver"] or "",
        cuda=facts["cuda"] or "",
        torch=facts["torch"] or "",
        triton=facts["triton"] or "",
        ptxas=facts["ptxas"] or "",
        fusebench=facts["fusebench"] or "",
    )
    time = created.replace(tzinfo=UTC)
    run = Run(
        schema_version=1,
        id=run_id,
        created=time.isoformat().replace("+00:00", "Z"),
        command="",
        timer=facts["timer"] or "",
        plan=SamplingPlan(replicates=0, rounds=0, cache=CacheState(cache), trim=0.0),
        environment=environment,
        suites=[],
        cases=[],
        kernels=[],
        results=[],
    )
    return Snapshot(run=run, time=time, cases={}, baselines={}, streams={}, boards={}, readings={})


def _matrices(
    model: _Model,
    *,
    figure: Figure,
    runs: Sequence[Snapshot],
    keys: Sequence[tuple[Any, ...]],
    newest: dict[tuple[str, str], tuple[datetime, str]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times in microseconds and figures, one row per series and one column per run; NaN where a run lacks the series.

    A run whose case of that name computes otherwise than the newest one's has no part in the case's series.
    """
    names = [[key[column] for key in keys] for column in range(3)]
    params = [newest[key[0], key[1]][1] for key in keys]
    model.keep("runs", {"run": ("VARCHAR", [one.run.id for one in runs]), "place": ("INT", list(range(len(runs))))})
    texts = {name: ("VARCHAR", column) for name, column in zip(("suite", "case", "kernel", "params"), [*names, params], strict=True)}
    model.keep("series", {**texts, "row": ("INT", list(range(len(keys))))})
    found = model.joined(f"s.row, r.place, time_us, {FIGURES[figure]} AS figure").fetchnumpy()
    times = np.full((len(keys), len(runs)), np.nan)
    figures = times.copy()
    where = found["row"], found["place"]
    times[where] = found["time_us"]
    figures[where] = found["figure"]
    return times, figures


def _tracks(read: _Read, *, margin: float, rate: float) -> list[Track]:
    """As `shifts.find_shifts`, for all series at once."""
    series, figures, times, long = read.series, read.figures, read.times, read.long
    if not long:
        return [Track(series=one, shifts=(), too_short=True) for one in series]
    cuts, p_values = read.division()
    limits = np.maximum(margin, FLOOR_US / np.nanmedian(times[long], axis=1))
    changed = sum(map(bool, cuts))
    while True:
        level = rate * max(1, changed) / len(long)
        points: dict[int, list[ChangePoint]] = {}
        for place, found in enumerate(cuts):
            kept = levels(series[long[place]].values, until(found, level), float(limits[place])) if found else []
            if kept:
                points[place] = kept
        if len(points) >= changed:
            break
        changed = len(points)
    claimed = [float(p_values[place]) if place in points else 1.0 for place in range(len(long))]
    adjusted = select(claimed, rate).adjusted
    tracks = {}
    for place, kept in points.items():
        row = long[place]
        there = np.nonzero(np.isfinite(figures[row]))[0]
        whole = msgspec.structs.replace(
            series[row],
            places=tuple(there.tolist()),
            values=tuple(figures[row, there].tolist()),
            times_us=tuple(times[row, there].tolist()),
        )
        rates = [adjusted_of(point, cuts[place], adjusted[place], rate / level) for point in kept]
        shifts = shifts_of(whole, kept, float(limits[place]), rates)
        tracks[row] = Track(series=whole, shifts=shifts, too_short=False)
    judged = set(long)
    return [tracks.get(row) or Track(series=one, shifts=(), too_short=row not in judged) for row, one in enumerate(series)]


def _explained(read: _Read, tracks: Sequence[Track], *, margin: float) -> list[Track]:
    """`tracks` with the cause of every shift."""
    held = _places(read.model, tracks)
    near = {kernel: moved_near(tracks, kernel) for kernel in {track.series.kernel for track in tracks if track.shifts}}
    found = list(tracks)
    for row, track in enumerate(tracks):
        if track.shifts:
            runs, boards = read.on_boards.of(row)
            told = explain(track, runs=runs, boards=boards, held=held.get(row, {}), moved=near[track.series.kernel], margin=margin)
            shifts = [
                msgspec.structs.replace(shift, cause=str(one.cause), cause_reason=one.reason)
                for shift, one in zip(track.shifts, told, strict=True)
            ]
            found[row] = msgspec.structs.replace(track, shifts=tuple(shifts))
    return found


def _places(model: _Model, tracks: Sequence[Track]) -> dict[int, dict[int, Place]]:
    """By row of the series and number of the run: machine code and yardstick around every shift."""
    wanted = set[tuple[int, int]]()
    for row, track in enumerate(tracks):
        for places in around(track):
            wanted.update((row, place) for place in places)
    if not wanted:
        return {}
    pairs = sorted(wanted)
    model.keep("wanted", {name: ("INT", [pair[column] for pair in pairs]) for column, name in enumerate(("row", "place"))})
    held = model.joined(
        "w.row, w.place, q.code, q.yardstick", f"JOIN {model.named('wanted')} AS w ON w.row = s.row AND w.place = r.place"
    ).fetchall()
    found: dict[int, dict[int, Place]] = {}
    for row, place, code, yardstick in held:
        found.setdefault(row, {})[place] = Place(code=code, yardstick=yardstick)
    return found


def _say_unknown(connection: duckdb.DuckDBPyConnection, selected: Selected) -> None:
    """Name the option that nothing answers to; nothing where only the dates or the figure exclude everything."""
    for what, column, text in (
        ("suite", "suite", ",".join(selected.suites)),
        ("op", "op", selected.op),
        ("kernel", "kernel", selected.kernel),
        ("case", "case", selected.case),
    ):
        if not text:
            continue
        alone = {"suites": selected.suites} if column == "suite" else {column: text}
        condition, values = Selected(figure=selected.figure, **alone).where()
        if connection.execute(f"SELECT 1 FROM results WHERE {condition} LIMIT 1", values).fetchone() is None:
            known = [name for (name,) in connection.execute(f'SELECT DISTINCT "{column}" FROM results').fetchall()]
            raise UnknownNameError(what, text, known, "the catalogue")
