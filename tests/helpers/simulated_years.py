"""Years of nightlies that no GPU measured, as files of a catalogue: times scatter as the stored runs of an H200 do.

Each series has the scatter of its class of calls (`results/calibration/nvidia_h200.scatter.json`): Student's t between processes and
placements, and an effect of every board on every series.  Boards take turns; one night in thirty disturbs some series.  Events change
times from a night on: by code, toolchain, method or board.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow
from numpy.typing import NDArray

from fusebench.naming import device_slug
from fusebench.schema import Reference
from fusebench.stats.scatter import DEGREES
from fusebench.store.catalogue.files import MERGED, Folder
from fusebench.store.catalogue.rows import COLUMNS, encode, make_table
from fusebench.store.scatter_file import load_scatter

STORED = Path(__file__).parents[2] / "results"
FIRST = datetime(2023, 1, 1, 3)
KERNELS = ("split_torch@1", "split_triton@1", "compiled@1", "fused_triton@1", "fused_triton@2", "fused_cuda@1")
OPS = ("qknorm_rope", "adaln", "silu_mul", "rope", "rmsnorm")


@dataclass(frozen=True)
class Event:
    """A change from one night on."""

    night: int
    change: float
    """New time over old, minus 1."""
    kind: str = "code"
    """`code`, `toolchain`, `method`, `board` or `bump`, which ends after `nights`."""
    kernel: str | None = None
    """Id of the kernel that changes; every kernel's unless given."""
    cases: int | None = None
    """Only the first so many cases."""
    nights: int = 10**6


@dataclass
class Years:
    """Simulated nightlies of one device model."""

    device: str = "NVIDIA H200"
    nights: int = 60
    cases: int = 5
    boards: int = 4
    events: Sequence[Event] = ()
    seed: int = 0
    disturbed: float = 1 / 30
    boards_by_night: Sequence[int] | None = None
    boards_by_case: NDArray[np.int64] | None = None
    """Boards by case and night, in place of one board for all cases of a night."""
    times: NDArray[np.float64] = field(init=False)
    """Microseconds: by case, kernel and night."""
    limits: NDArray[np.float64] = field(init=False)
    """By case and night."""

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        scatter = load_scatter(STORED, "NVIDIA H200")
        assert scatter is not None
        shape = (self.cases, len(KERNELS), self.nights)
        base = np.exp(random.uniform(math.log(4), math.log(400), self.cases))
        factors = np.array([4.0, 2.0, 1.6, 1.25, 1.08, 1.11])
        several = [True, True, True, False, False, False]
        night_sd, board_sd = np.zeros(shape[:2]), np.zeros(shape[:2])
        for case in range(self.cases):
            for kernel, factor in enumerate(factors):
                one = next(
                    one
                    for one in scatter.classes
                    if one.reference is Reference.CASE
                    and one.several_launches == several[kernel]
                    and one.low_us <= base[case] * factor < one.high_us
                )
                night_sd[case, kernel] = math.hypot(one.process or 0.0, one.placement)
                board_sd[case, kernel] = one.board or 0.0
        self.board = (
            np.asarray(self.boards_by_night, dtype=np.int64)
            if self.boards_by_night is not None
            else random.integers(0, self.boards, self.nights)
        )
        logs = random.standard_t(DEGREES, shape) * night_sd[:, :, None]
        if self.boards_by_case is None:
            logs += (random.standard_t(DEGREES, (*shape[:2], int(self.board.max()) + 1)) * board_sd[:, :, None])[:, :, self.board]
        else:
            effects = random.standard_t(DEGREES, (*shape[:2], int(self.boards_by_case.max()) + 1)) * board_sd[:, :, None]
            logs += np.take_along_axis(effects, np.broadcast_to(self.boards_by_case[:, None, :], shape), axis=2)
        wild = (random.random(self.nights) < self.disturbed) & (random.random(shape) < 0.5)
        logs += np.where(wild, random.uniform(0, 0.05, shape), 0.0)
        for event in self.events:
            kernels = [place for place in range(len(KERNELS)) if event.kernel is None or event.kernel == KERNELS[place]]
            rows = np.ix_(range(event.cases or self.cases), kernels, range(event.night, min(self.nights, event.night + event.nights)))
            change = math.log1p(event.change)
            if event.kind == "toolchain":  # some kernels only
                logs[rows] += np.where(random.random((len(rows[0]), len(kernels), 1)) < 0.7, change, 0.0)
            elif event.kind != "board":
                logs[rows] += change
        boards = [event for event in self.events if event.kind == "board"]
        for event in boards:
            if self.boards_by_case is not None:
                slow = (self.boards_by_case == 0) & (np.arange(self.nights) >= event.night)
                logs += slow[:, None, :] * math.log1p(event.change)
                continue
            self.board[event.night :] = np.where(self.board[event.night :] == 0, 99, self.board[event.night :])
            logs[:, :, self.board == 99] += math.log1p(event.change)
        self.times = base[:, None, None] * factors[None, :, None] * np.exp(logs)
        self.limits = np.repeat(base[:, None], self.nights, axis=1)

    def write(self, results: Path) -> int:
        """Write the catalogue, a file per month, and return the number of rows."""
        months: dict[str, list[int]] = {}
        for night in range(self.nights):
            months.setdefault((FIRST + timedelta(days=night)).strftime("%Y-%m"), []).append(night)
        folder, rows = Folder(results), 0
        for month, nights in months.items():
            table = self._table(np.array(nights))
            rows += len(table)
            names = [f"{FIRST + timedelta(days=night):%Y%m%dT%H%M%SZ}_{self._run(night)}" for night in nights]
            folder.write(
                f"catalogue/v1/device={device_slug(self.device)}/month={month}/{MERGED}{len(nights):04d}-{month}.parquet",
                encode(table, names),
            )
        return rows

    def _run(self, night: int) -> str:
        return f"{device_slug(self.device)[-4:]}{night:05d}"

    def _table(self, nights: NDArray[np.int64]) -> pyarrow.Table:
        cases, kernels = self.times.shape[:2]
        count = len(nights) * cases * kernels
        case, kernel, place = (axis.ravel() for axis in np.indices((cases, kernels, len(nights))))
        night = nights[place]

        def text(values: Sequence[str], codes: NDArray[np.int64]) -> pyarrow.Array:
            return pyarrow.DictionaryArray.from_arrays(pyarrow.array(codes, pyarrow.int32()), pyarrow.array(values)).cast("string")

        ops = [OPS[one % len(OPS)] for one in range(cases)]
        ids = [f"{op}/{name}" for op in OPS for name in KERNELS]
        times = self.times[case, kernel, night]
        base = self.times[case, 1, night]
        toolchain = np.searchsorted(sorted(one.night for one in self.events if one.kind == "toolchain"), nights, side="right")
        method = np.searchsorted(sorted(one.night for one in self.events if one.kind == "method"), nights, side="right")
        changed = np.zeros((len(KERNELS), len(nights)), dtype=np.int64)
        for event in self.events:
            if event.kind in ("code", "toolchain"):
                rows = [one for one in range(len(KERNELS)) if event.kernel in (None, KERNELS[one])]
                changed[np.ix_(rows, nights >= event.night)] += 1
        columns: dict[str, pyarrow.Array] = {
            "run": text([self._run(int(one)) for one in nights], place),
            "created": pyarrow.array([FIRST + timedelta(days=int(one)) for one in nights], pyarrow.timestamp("us")).take(
                pyarrow.array(place)
            ),
            "commit": text([hashlib.sha256(str(one).encode()).hexdigest()[:40] for one in nights], place),
            "device": text([self.device], np.zeros(count, dtype=np.int64)),
            "board": text(
                [f"board{one}" for one in range(100)],
                self.board[night] if self.boards_by_case is None else self.boards_by_case[case, night],
            ),
            "driver": text([f"{580 + one}.1" for one in range(50)], toolchain[place]),
            "fusebench": text([f"0.{3 + one}.0" for one in range(50)], method[place]),
            "timer": text(["cupti"], np.zeros(count, dtype=np.int64)),
            "cache": text(["cold"], np.zeros(count, dtype=np.int64)),
            "suite": text(["nightly"], np.zeros(count, dtype=np.int64)),
            "case": text([f"case_{one:03d}" for one in range(cases)], case),
            "op": text(ops, case),
            "params": text(["0"], np.zeros(count, dtype=np.int64)),
            "kernel": text(ids, (case % len(OPS)) * len(KERNELS) + kernel),
            "code": text([f"code{one}" for one in range(50)], changed[kernel, place]),
            "yardstick": text(["stream"], np.zeros(count, dtype=np.int64)),
            "status": text(["measured"], np.zeros(count, dtype=np.int64)),
            "gating": pyarrow.array(kernel != 2),
            "usable": pyarrow.array(np.ones(count, dtype=bool)),
            "time_us": pyarrow.array(times),
            "speedup": pyarrow.array(base / times),
            "limit_us": pyarrow.array(self.limits[case, night]),
        }
        empty = make_table([])
        return pyarrow.table({name: columns.get(name, pyarrow.nulls(count, empty.schema.field(name).type)) for name in COLUMNS})
