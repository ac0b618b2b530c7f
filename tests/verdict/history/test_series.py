"""Which runs and which of their figures make a series."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import CacheState, Role, Run, SamplingPlan, Status
from fusebench.verdict.history.series import Figure, Series, comparable_runs, series_of, snapshot

CASE = "flux_1024"


def series(runs: Sequence[Run], figure: Figure = Figure.SOL) -> dict[tuple[str, str], Series]:
    kept, _ = comparable_runs([snapshot(run) for run in runs], figure)
    return {(one.case, one.kernel): one for one in series_of(kept, figure)}


@pytest.fixture
def few(synthetic: ModuleType) -> dict[str, Any]:
    """What keeps a synthetic history small: one case, a split and a fused kernel, no noise."""
    return {"cases": (CASE,), "kernels": (synthetic.BASELINE, synthetic.FUSED), "scatter": 0.0, "seed": 3}


def test_every_figure_grows_as_the_kernel_gets_slower(synthetic: ModuleType, few: dict[str, Any]) -> None:
    runs = synthetic.make_history(2, {(CASE, synthetic.FUSED): [(1, 1.1)]}, **few)
    for figure in Figure:
        found = series(runs, figure)[CASE, synthetic.FUSED]
        assert found.values[1] / found.values[0] == pytest.approx(1.1), figure
        assert found.times_us[1] / found.times_us[0] == pytest.approx(1.1), figure
    assert series(runs)[CASE, synthetic.FUSED].yardsticks_us() == pytest.approx([26.0, 26.0]), "the copy's time"
    assert series(runs, Figure.SPEEDUP).keys() == {(CASE, synthetic.FUSED)}, "a baseline has no speedup over itself"


def test_runs_are_taken_in_order_of_time_and_each_once(synthetic: ModuleType, few: dict[str, Any]) -> None:
    runs = [snapshot(run) for run in synthetic.make_history(5, **few)]
    kept, _ = comparable_runs([*reversed(runs), runs[2]], Figure.SOL)
    assert [one.run.id for one in kept] == ["n000", "n001", "n002", "n003", "n004"]


def test_a_stopped_run_is_left_out_where_the_run_that_went_on_with_it_holds_its_cases(synthetic: ModuleType, few: dict[str, Any]) -> None:
    runs = synthetic.make_history(4, **few)
    runs[1] = msgspec.structs.replace(runs[1], complete=False)
    runs[2] = msgspec.structs.replace(runs[2], resumed_from=["n001"])
    kept, left_out = comparable_runs([snapshot(run) for run in runs], Figure.SOL)
    assert [one.run.id for one in kept] == ["n000", "n002", "n003"]
    assert [(one.run, one.reason) for one in left_out] == [("n001", "run n002 went on with it and holds its cases")]
    two = synthetic.make_history(4, **few | {"cases": (CASE, "zimage_1024")})
    lacking = [runs[0], msgspec.structs.replace(two[1], complete=False), *runs[2:]]
    assert len(comparable_runs([snapshot(run) for run in lacking], Figure.SOL)[0]) == 4, "it holds a case that the other one lacks"


@pytest.mark.parametrize(
    ("particular", "reason"),
    [
        ({"timer": "cuda_events"}, "timer: cuda_events -> cupti"),
        ({"plan": SamplingPlan(replicates=12, rounds=40, cache=CacheState.WARM, trim=0.1)}, "cache state: warm -> cold"),
        ({"environment": {"device_name": "NVIDIA B200"}}, "device: NVIDIA B200 -> NVIDIA H200"),
    ],
)
def test_runs_that_cannot_be_compared_with_the_newest_are_left_out_by_name(
    synthetic: ModuleType, few: dict[str, Any], particular: dict[str, Any], reason: str
) -> None:
    runs = [snapshot(run) for run in synthetic.make_history(4, each={1: particular}, **few)]
    kept, left_out = comparable_runs(runs, Figure.SOL)
    assert [one.run.id for one in kept] == ["n000", "n002", "n003"]
    assert [(one.run, one.reason) for one in left_out] == [("n001", reason)]


def test_raw_times_ask_for_the_newest_runs_driver_and_board_and_ratios_do_not(synthetic: ModuleType, few: dict[str, Any]) -> None:
    each = {0: {"environment": {"driver": "570.1"}}, 1: {"environment": {"device_uuid": "GPU-b"}}}
    runs = [snapshot(run) for run in synthetic.make_history(3, each=each, **few)]
    assert len(comparable_runs(runs, Figure.SOL)[0]) == 3
    kept, left_out = comparable_runs(runs, Figure.RAW)
    assert [one.run.id for one in kept] == ["n002"]
    assert [one.reason for one in left_out] == ["driver: 570.1 -> 580.159", "board: GPU-b -> GPU-00000000"]


def test_raw_times_of_a_run_of_two_boards_count_by_the_board_of_each_case(synthetic: ModuleType, few: dict[str, Any]) -> None:
    few["cases"] = (CASE, "qwen_image_1024")
    runs = synthetic.make_history(4, each={0: {"environment": {"device_uuid": "GPU-b"}}}, **few)
    for place, boards in ((1, ("GPU-b", "GPU-a")), (3, ("GPU-a", "GPU-b"))):  # run 2 is of another board alone
        cases = [msgspec.structs.replace(one, board=board) for one, board in zip(runs[place].cases, boards, strict=True)]
        environment = msgspec.structs.replace(runs[place].environment, device_uuid="GPU-a,GPU-b")
        runs[place] = msgspec.structs.replace(runs[place], cases=cases, environment=environment)
    kept, left_out = comparable_runs([snapshot(run) for run in runs], Figure.RAW)
    assert [one.run.id for one in kept] == ["n000", "n003"], "on GPU-b the first run has measured the second case"
    assert [one.reason for one in left_out] == ["another board for each case", "board: GPU-00000000 -> GPU-a,GPU-b"]
    found = series(runs, Figure.RAW)
    assert {key: one.places for key, one in found.items() if key[1] == synthetic.FUSED} == {
        (CASE, synthetic.FUSED): (1,),
        ("qwen_image_1024", synthetic.FUSED): (0, 1),
    }


def test_the_newest_run_is_that_of_the_window(synthetic: ModuleType, few: dict[str, Any]) -> None:
    runs = [snapshot(run) for run in synthetic.make_history(6, each={1: {"timer": "host"}, 4: {"timer": "host"}}, **few)]
    kept, left_out = comparable_runs(runs, Figure.SOL, since=datetime(2026, 7, 3, tzinfo=UTC))
    assert ([one.run.id for one in kept], [one.run for one in left_out]) == (["n002", "n003", "n005"], ["n004"])
    kept, left_out = comparable_runs(runs, Figure.SOL, last=2)
    assert ([one.run.id for one in kept], [one.run for one in left_out]) == (["n003", "n005"], ["n004"])


def test_a_case_that_kept_its_name_and_changed_its_shape_begins_anew(synthetic: ModuleType, few: dict[str, Any]) -> None:
    runs = synthetic.make_history(4, each={0: {"params": {"tokens": 512}}, 1: {"params": {"tokens": 512}}}, **few)
    assert series(runs)[CASE, synthetic.FUSED].places == (2, 3)


def test_speedups_over_another_baseline_are_another_figure(synthetic: ModuleType, few: dict[str, Any]) -> None:
    few["kernels"] = (f"{synthetic.OP}/split_torch@1", *few["kernels"])
    runs = synthetic.make_history(3, each={0: {"baseline": f"{synthetic.OP}/split_torch@1"}}, **few)
    assert series(runs, Figure.SPEEDUP)[CASE, synthetic.FUSED].places == (1, 2)
    assert series(runs)[CASE, synthetic.FUSED].places == (0, 1, 2)


def test_shares_of_another_yardstick_are_left_out_and_speedups_are_not(synthetic: ModuleType, few: dict[str, Any]) -> None:
    """A yardstick in the op's own mix is faster than a copy: every share fell in the night of the change, and no kernel was slower."""
    runs = synthetic.make_history(6, **few)
    change = {"stream_shape": "reads 2, writes 1"}
    runs[4:] = [msgspec.structs.replace(run, cases=[msgspec.structs.replace(one, **change) for one in run.cases]) for run in runs[4:]]
    kept, left_out = comparable_runs([snapshot(run) for run in runs], Figure.SOL)
    assert [one.run.id for one in kept] == [run.id for run in runs[4:]]
    assert {one.run for one in left_out} == {run.id for run in runs[:4]}
    assert all("another streaming yardstick" in one.reason for one in left_out)
    assert len(comparable_runs([snapshot(run) for run in runs], Figure.SPEEDUP)[0]) == 6


def test_a_night_without_the_kernel_is_a_gap_and_a_kernel_that_is_gone_is_advisory(synthetic: ModuleType, few: dict[str, Any]) -> None:
    away = {"status": {(CASE, synthetic.FUSED): (Status.CRASHED, "boom")}}
    gap = series(synthetic.make_history(4, each={1: away}, **few))[CASE, synthetic.FUSED]
    assert (gap.places, gap.gating) == ((0, 2, 3), True)
    gone = series(synthetic.make_history(4, each={3: away}, **few))[CASE, synthetic.FUSED]
    assert (gone.places, gone.gating) == ((0, 1, 2), False)


def test_a_suite_that_the_newest_run_does_not_hold_keeps_its_say(synthetic: ModuleType, few: dict[str, Any]) -> None:
    """Nightly runs may take turns."""
    found = series(synthetic.make_history(4, each={3: {"cases": ("zimage_1024",)}}, **few))
    assert found[CASE, synthetic.FUSED].gating


def test_peers_are_advisory_and_parts_have_no_series(synthetic: ModuleType, few: dict[str, Any]) -> None:
    runs = synthetic.make_history(2, **few)
    peers = series([synthetic.change_results(run, role=Role.PEER) for run in runs])
    assert [one.gating for one in peers.values()] == [False, False]
    assert series([synthetic.change_results(run, covers="norm only") for run in runs], Figure.RAW) == {}


def test_the_speed_of_compiled_code_has_a_series_and_is_advisory(synthetic: ModuleType, few: dict[str, Any]) -> None:
    few["kernels"] = (*few["kernels"], f"{synthetic.OP}/compiled@1")
    found = series(synthetic.make_history(2, **few))
    assert [found[CASE, kernel].gating for kernel in (f"{synthetic.OP}/compiled@1", synthetic.FUSED)] == [False, True]


def test_a_case_that_was_not_cold_is_left_out_of_that_night(synthetic: ModuleType, few: dict[str, Any]) -> None:
    first, second = synthetic.make_history(2, **few)
    warm = msgspec.structs.replace(second, cases=[msgspec.structs.replace(one, not_cold="faster than the copy") for one in second.cases])
    assert series([first, warm])[CASE, synthetic.FUSED].places == (0,)


@pytest.mark.parametrize(
    ("particular", "said"), [({"exit_code": 3}, "not fit to measure"), ({"created": "yesterday"}, "not an ISO 8601 time")]
)
def test_records_that_prove_nothing_are_refused(synthetic: ModuleType, few: dict[str, Any], particular: dict[str, Any], said: str) -> None:
    (run,) = synthetic.make_history(1, each={0: particular}, **few)
    with pytest.raises(RunRecordError, match=said):
        snapshot(run)
