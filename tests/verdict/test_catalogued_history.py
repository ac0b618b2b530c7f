"""Simulated years of nightlies: which changes a history finds, how soon, how often it cries wolf, and the causes it names."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusebench.errors import UnknownNameError
from fusebench.schema import ExitCode
from fusebench.store.catalogue.files import CatalogueError, Folder
from fusebench.store.catalogue.query import Catalogue
from fusebench.verdict.history.catalogued import DeviceHistory, OnBoards, histories
from fusebench.verdict.history.dividing import side_by_side
from fusebench.verdict.history.selected import Selected
from fusebench.verdict.history.shifts import history_exit_code
from helpers.simulated_years import Event, Years

KERNEL = "fused_triton@2"
NIGHTS = 200


def history(folder: Path, *events: Event, **fields: Any) -> DeviceHistory:
    Years(events=events, **{"nights": NIGHTS, "cases": 10} | fields).write(folder)
    (found,) = histories(Catalogue(Folder(folder)), Selected(), margin=0.01)
    return found


def shifts(found: DeviceHistory) -> list[tuple[str, str, str, int]]:
    return [
        (one.series.case, one.series.kernel.partition("/")[2], shift.cause or "", shift.place)
        for one in found.tracks
        for shift in one.shifts
    ]


def test_a_slower_kernel_is_a_regression_between_two_commits(tmp_path: Path) -> None:
    found = history(tmp_path, Event(120, 0.03, kernel=KERNEL, cases=5))
    assert len(found.tracks) == 60
    told = [one for one in shifts(found) if one[1] == KERNEL]
    assert {case for case, *_ in told} == {f"case_{place:03d}" for place in range(5)}
    assert {cause for *_, cause, _ in told} == {"regression"}
    assert all(abs(place - 120) <= 2 for *_, place in told)
    assert history_exit_code(found.tracks) == ExitCode.REGRESSION
    (shift,) = next(one.shifts for one in found.tracks if one.series.case == "case_000" and KERNEL in one.series.kernel)
    runs = found.runs[shift.place_before].run, found.runs[shift.place].run
    assert shift.cause_reason == "commits {}..{}".format(*(run.environment.git_commit[:10] for run in runs))


@pytest.mark.parametrize(
    ("event", "cause", "code"),
    [
        (Event(120, -0.03, kernel=KERNEL), "improvement", ExitCode.PASS),
        (Event(120, 0.03, "toolchain"), "toolchain", ExitCode.REGRESSION),
        (Event(120, 0.03, "method"), "method", ExitCode.PASS),
        (Event(120, 0.05, "bump", kernel=KERNEL, nights=12), "noise", ExitCode.PASS),
    ],
    ids=["improvement", "toolchain", "method", "noise"],
)
def test_a_change_that_is_no_regression_of_the_code_is_told_from_one(tmp_path: Path, event: Event, cause: str, code: ExitCode) -> None:
    found = history(tmp_path, event)
    told = [one for one in shifts(found) if abs(one[3] - 120) < 20]
    assert told
    causes = [cause for *_, cause, _ in told]
    assert causes.count(cause) >= 0.9 * len(causes), causes
    assert history_exit_code(found.tracks) == code


def test_a_slow_board_that_most_nights_run_on_is_told_from_a_slow_kernel(tmp_path: Path) -> None:
    boards = [night % 4 + 1 if night < 120 or night % 5 == 0 else 0 for night in range(NIGHTS)]
    found = history(tmp_path, Event(120, 0.08, "board"), boards_by_night=boards)
    causes = {cause for *_, cause, _ in shifts(found)}
    assert causes == {"hardware"}
    assert history_exit_code(found.tracks) == ExitCode.PASS


def test_a_record_of_two_boards_is_of_each_cases_own_board(tmp_path: Path) -> None:
    """Every night is of boards 0 and 1, and board 0 is slower; from night 120 on it measures most nights of the first cases."""
    nights = np.arange(NIGHTS)
    moved = (nights >= 120) & (nights % 5 > 0)
    dealt = np.array([np.where(moved, 0, nights % 2) if case < 5 else (nights + case) % 2 for case in range(10)])
    found = history(tmp_path, Event(0, 0.08, "board"), boards_by_case=dealt)
    assert {one.run.environment.device_uuid for one in found.runs} == {"board0,board1"}
    assert {cause for *_, cause, _ in shifts(found)} <= {"hardware"}
    assert history_exit_code(found.tracks) == ExitCode.PASS
    blamed = history(tmp_path / "code", Event(0, 0.08, "board"), Event(120, 0.05, kernel=KERNEL, cases=5), boards_by_case=dealt)
    told = [(case, cause) for case, kernel, cause, _ in shifts(blamed) if kernel == KERNEL]
    assert sorted(told) == [(f"case_{place:03d}", "regression") for place in range(5)]


def test_the_cause_of_a_change_is_sought_on_the_boards_of_the_series(tmp_path: Path) -> None:
    runs = [one.run for one in history(tmp_path, boards_by_case=np.array([[0, 1, 1], [1, 0, 1]]), nights=3, cases=2).runs]
    assert [run.environment.device_uuid for run in runs] == ["board0,board1", "board0,board1", "board1"]
    seen = OnBoards(runs, ["board0", "board1"], np.array([[0, 1, 1], [1, 0, 1]]))
    assert [[run.environment.device_uuid for run in seen.of(row)[0]] for row in (0, 1)] == [
        ["board0", "board1", "board1"],
        ["board1", "board0", "board1"],
    ]


def test_boards_that_replace_each_other_are_no_regression(tmp_path: Path) -> None:
    """Each runner is replaced after 40 nights: every board's own effect begins and ends with it, and no commit is to blame."""
    replaced = history(tmp_path, boards_by_night=[night // 40 for night in range(NIGHTS)], cases=40)
    assert "regression" not in {cause for *_, cause, _ in shifts(replaced)}
    assert history_exit_code(replaced.tracks) == ExitCode.PASS


def test_only_what_is_selected_is_read_and_an_unknown_name_is_told(tmp_path: Path) -> None:
    Years(nights=30, cases=5, events=[Event(15, 0.05, kernel=KERNEL)]).write(tmp_path)
    Years("NVIDIA B200", nights=30, cases=5, seed=1).write(tmp_path)
    catalogue = Catalogue(Folder(tmp_path))
    for glob, count in ((KERNEL, 5), ("fused_triton", 10), (f"rope/{KERNEL}", 1), ("*cuda*,rope/*", 10)):
        both = histories(catalogue, Selected(kernel=glob), margin=0.01)
        assert [one.device for one in both] == ["NVIDIA B200", "NVIDIA H200"]
        assert {len(one.tracks) for one in both} == {count}, glob
    assert len(histories(catalogue, Selected(case="case_001,nightly:case_002"), margin=0.01)[0].tracks) == 12
    assert len(histories(catalogue, Selected(last=12), margin=0.01)[0].runs) == 12
    with pytest.raises(UnknownNameError, match="unknown kernel 'fused_tritn'"):
        histories(catalogue, Selected(kernel="fused_tritn"), margin=0.01)


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})


@pytest.mark.usefixtures("two_processors")
def test_models_divided_side_by_side_have_the_changes_and_causes_of_each_alone(tmp_path: Path) -> None:
    for seed, device in enumerate(("NVIDIA B200", "NVIDIA H200", "NVIDIA L40S")):
        events = [Event(60 + 20 * seed, 0.03, kernel=KERNEL, cases=5), Event(150 - 20 * seed, 0.03, "toolchain")]
        for folder in (device, "all"):
            Years(device, nights=NIGHTS, cases=10, seed=seed, events=events).write(tmp_path / folder)
    catalogue = Catalogue(Folder(tmp_path / "all"))
    with side_by_side(catalogue) as divide:
        together = histories(catalogue, Selected(), margin=0.01, divide=divide)
    assert not multiprocessing.active_children()
    for found in together:
        (alone,) = histories(Catalogue(Folder(tmp_path / found.device)), Selected(), margin=0.01)
        assert shifts(found) == shifts(alone) != []


@pytest.mark.usefixtures("two_processors")
def test_a_killed_process_that_divides_is_told(tmp_path: Path) -> None:
    for device in ("NVIDIA B200", "NVIDIA H200"):
        Years(device, nights=30, cases=5).write(tmp_path)
    catalogue = Catalogue(Folder(tmp_path))
    with side_by_side(catalogue) as divide:
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
        with pytest.raises(CatalogueError, match="was ended, as for lack of memory"):
            histories(catalogue, Selected(), margin=0.01, divide=divide)


def test_the_command_prints_and_judges_a_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from fusebench.cli.main import app

    Years(nights=60, cases=5, events=[Event(40, 0.05, kernel=KERNEL)]).write(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["history", "--results", str(tmp_path), "--gate", "--json"])
    assert done.exit_code == ExitCode.REGRESSION, done.output
    (document,) = json.loads(done.stdout)["devices"]
    assert document["device"] == "NVIDIA H200"
    assert {one["cause"] for one in document["changes"] if KERNEL in one["kernel"]} == {"regression"}
    shown = CliRunner().invoke(app, ["history", "--results", str(tmp_path), "--kernel", KERNEL])
    assert "regression: commits" in shown.stdout
    refused = CliRunner().invoke(app, ["history", "--results", str(tmp_path), "runs"])
    assert refused.exit_code == ExitCode.USAGE
    assert "name no RUNS" in refused.stderr
    (tmp_path / "none").mkdir()
    empty = CliRunner().invoke(app, ["history", "--results", str(tmp_path / "none")])
    assert empty.exit_code == ExitCode.USAGE
    assert f"{tmp_path / 'none'}: the catalogue is empty" in empty.stderr


@pytest.mark.exhaustive
def test_false_alarms_and_delays_over_simulated_years(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The figures of docs/history.md: 300 series, 3 years, steps in five of them."""
    alarms, series = 0, 0
    for seed in range(4):
        found = history(tmp_path / str(seed), seed=seed, nights=1096, cases=50)
        alarms += sum(bool(one.shifts) for one in found.tracks)
        assert not any(shift.cause == "regression" for one in found.tracks for shift in one.shifts)
        series += len(found.tracks)
    record_property("false alarms", f"{alarms} of {series}")
    print(f"false alarms: {alarms} of {series} series of three years")
    assert alarms <= 0.01 * series
    for change in (0.01, 0.02, 0.03, 0.05):
        for delay in (5, 6, 7, 8, 10, 15):
            years = Years(nights=400, cases=50, seed=9, events=[Event(400 - delay, change, kernel=KERNEL)])
            folder = tmp_path / f"{change}-{delay}"
            years.write(folder)
            (found,) = histories(Catalogue(Folder(folder)), Selected(), margin=0.01)
            seen = [one.newest_slower for one in found.tracks if KERNEL in one.series.kernel]
            others = [one.newest_slower for one in found.tracks if KERNEL not in one.series.kernel]
            print(f"{change:.0%} {delay} runs: {np.mean(seen):.0%} seen, {sum(others)} of {len(others)} others")
            if change >= 0.03 and delay >= 6:
                assert np.mean(seen) > 0.9


@pytest.mark.exhaustive
@pytest.mark.alone
def test_ten_million_results_on_three_models(tmp_path: Path) -> None:
    rows = 0
    for seed, device in enumerate(("NVIDIA H200", "NVIDIA B200", "NVIDIA L40S")):
        events = [Event(200, 0.03, kernel=KERNEL, cases=100), Event(500, 0.015, "toolchain"), Event(700, 0.02, "method")]
        rows += Years(device, nights=1096, cases=510, seed=seed, events=events).write(tmp_path)
    assert rows > 10_000_000
    for kernel in (f"qknorm_rope/{KERNEL}", None):
        start, used = time.perf_counter(), time.process_time()
        found = histories(Catalogue(Folder(tmp_path)), Selected(kernel=kernel), margin=0.01)
        print(f"{kernel or 'everything'}: {time.perf_counter() - start:.1f} s, {time.process_time() - used:.1f} s of processors")
        assert len(found) == 3
