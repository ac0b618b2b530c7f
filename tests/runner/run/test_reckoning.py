"""A budget for a whole run is a deadline, one that is too small is shared out and says so before anything is measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import fusebench.runner.engine as engine_module
import fusebench.runner.run.measured_case as measured_case_module
import fusebench.runner.run.precision as precision_module
import fusebench.runner.run.reckoning as reckoning_module
from fusebench.runner.context import AHEAD, CHECK
from fusebench.runner.run.command import checks_ahead
from fusebench.runner.run.reckoning import Reckoning, measured_before, reckon
from fusebench.runner.workers.protocol import TimeTask
from fusebench.schema import Case, Run, Spending
from helpers import session_bench
from helpers.session_bench import PLAN, Bench, FakeWorker

bench, cases = session_bench.bench, session_bench.cases
PHASES = {CHECK: 30.0, AHEAD: 15.0, "timed rounds": 16.0, "placements": 4.0, "warm-up to steady clocks": 10.0}


@pytest.fixture
def known(bench: Bench, cases: list[Case]) -> Run:
    """A run of the three cases, that took 20 s, 20 s and 40 s beside its checks ahead."""
    run = bench.run(cases, kernel="good")
    timed = [msgspec.structs.replace(one, seconds=seconds) for one, seconds in zip(run.cases, (20.0, 20.0, 40.0), strict=True)]
    return msgspec.structs.replace(run, cases=timed, spending=Spending(total_s=75.0, phases_s=PHASES))


def even(count: int, seconds: float, boards: int = 1) -> Reckoning:
    return Reckoning(cases={f"scale:{number}": seconds for number in range(count)}, ahead_s=0.0, boards=boards, source="planted")


def test_timed_rounds_grow_with_their_number_the_rest_with_the_processes_and_checks_do_not(
    bench: Bench, cases: list[Case], known: Run
) -> None:
    same = reckon(cases, bench.collection, known, PLAN)
    assert (same.ahead_s, sum(same.cases.values()), same.total_s) == pytest.approx((15.0, 60.0, 75.0))
    assert same.cases["scale:third"] == pytest.approx(2 * same.cases["scale:first"])
    plan = msgspec.structs.replace(PLAN, processes=2, replicates=3 * PLAN.replicates)
    more = reckon(cases, bench.collection, known, plan)
    assert sum(more.cases.values()) == pytest.approx(30.0 + 2 * 10.0 + 2 * 3 * 20.0)
    assert f"from run {known.id}, with 1 process of 2 placements" in more.source
    two = reckon(cases[:2], bench.collection, known, PLAN, boards=2)
    assert two.total_s == pytest.approx(75.0 / 2 / 2), "half of the work, on two boards"


def test_equal_work_is_reckoned_once_and_without_a_stored_run_bytes_tell(bench: Bench, cases: list[Case]) -> None:
    again = msgspec.structs.replace(cases[0], name="again")
    found = reckon([*cases, again], bench.collection, None, msgspec.structs.replace(PLAN, processes=2))
    assert list(found.cases) == [case.key for case in cases]
    assert sum(found.cases.values()) == pytest.approx(2 * 3 * reckoning_module.START_S, rel=0.01)
    assert "roughly" in found.source


def test_a_case_may_take_all_that_later_ones_leave_and_its_part_at_least() -> None:
    plan = even(3, 30.0)
    assert plan.allowance("scale:0", ["scale:1", "scale:2"], 300.0) == 240.0
    assert plan.allowance("scale:0", ["scale:1", "scale:2"], 45.0) == 15.0
    assert plan.allowance("scale:2", [], 7.0) == 7.0
    assert plan.allowance("scale:0", ["scale:1", "scale:2"], -1.0) <= 0
    assert even(3, 30.0, boards=2).allowance("scale:0", ["scale:1", "scale:2"], 300.0) == 270.0
    assert plan.allowance("scale:unknown", ["scale:1"], 100.0) == 70.0


@pytest.fixture
def clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock on which every check and every measurement takes 10 s, and says how many processes live when a case is first asked."""
    clock = SimpleNamespace(now=0.0, alive=[])
    clock.monotonic = lambda: clock.now
    for module in (engine_module, measured_case_module, precision_module):
        monkeypatch.setattr(module, "time", clock)

    def pass_by() -> None:
        clock.alive.append(bench.pool.alive)
        clock.now += 10.0

    def prepare(worker: FakeWorker, number: int) -> None:
        worker.before_each = lambda: setattr(clock, "now", clock.now + 10.0)

    bench.worker.before_each, bench.pool.prepare = pass_by, prepare
    return clock


def seconds_of(bench: Bench) -> list[float | None]:
    return [task.seconds for task in bench.worker.tasks if isinstance(task, TimeTask)]


def keyed(cases: list[Case], seconds: float) -> Reckoning:
    return Reckoning(cases={case.key: seconds for case in cases}, ahead_s=0.0, boards=1, source="planted")


def test_a_generous_budget_is_a_deadline_and_processes_begin_before_they_are_needed(
    bench: Bench, cases: list[Case], clock: SimpleNamespace
) -> None:
    plan = msgspec.structs.replace(PLAN, processes=3)
    run = bench.run(cases, budget_s=300.0, kernel="good", plan=plan, reckoning=keyed(cases, 50.0))
    # Two checks precede each measurement: 300 - 2 * 50 - 20, 250 - 50 - 20, 200 - 20.
    assert seconds_of(bench) == [180.0, 180.0, 180.0]
    assert run.complete
    assert all(one.measurement.processes == 3 for one in run.results if one.measurement is not None)
    assert clock.alive[0] == 2, "the other two processes begin beside the first check"
    assert not any("the budget ended" in text for text in run.warnings)


def test_a_budget_that_is_too_small_is_shared_out_by_what_cases_take(bench: Bench, cases: list[Case], clock: SimpleNamespace) -> None:
    plan = msgspec.structs.replace(PLAN, processes=3)
    uneven = Reckoning(cases={cases[0].key: 50.0, cases[1].key: 50.0, cases[2].key: 200.0}, ahead_s=0.0, boards=1, source="planted")
    run = bench.run(cases, budget_s=150.0, kernel="good", plan=plan, reckoning=uneven)
    first, second, third = seconds_of(bench)
    assert (first, second) == pytest.approx((25.0 - 20.0, 120.0 * 50 / 250 - 20.0)), "a sixth of it, then a fifth of its rest"
    assert third == pytest.approx(90.0 - 20.0)
    assert clock.alive[0] == 0, "no process begins that may not be asked"
    assert any("the budget ended after process 1 of 3" in text for text in run.warnings)


def test_the_message_says_what_is_expected_what_is_given_up_and_what_to_pass() -> None:
    told = even(165, 5.0).shortage(520.0, msgspec.structs.replace(PLAN, processes=2, replicates=4))
    for part in ("165 cases", "2 processes of 4 placements", "825 s", "(planted)", "fewer placements", "nothing is checked ahead",
                 "--budget 910", "--processes 1", "--shard 1/2 to 2/2"):  # fmt: skip
        assert part in told


@pytest.mark.parametrize(
    ("budget", "fits", "ahead"), [(None, None, True), (500.0, None, False), (500.0, 400.0, True), (500.0, 600.0, False)]
)
def test_kernels_are_checked_ahead_where_the_budget_is_for_the_whole(budget: Any, fits: Any, ahead: bool) -> None:
    request: Any = SimpleNamespace(
        device=SimpleNamespace(kind="cuda"), resume=None, budget_s=budget, reckoning=even(1, fits) if fits is not None else None
    )
    assert checks_ahead(request) is ahead
    request.device.kind = "cpu"
    assert not checks_ahead(request)


def test_runs_that_a_budget_or_a_stop_cut_short_tell_no_seconds(known: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    thin = msgspec.structs.replace(known, warnings=["case scale:first: the budget ended before all 2 replicates"])
    stored = {"a": known, "b": thin, "c": msgspec.structs.replace(known, complete=False)}
    monkeypatch.setattr(reckoning_module, "run_folders", lambda folder: sorted(map(Path, stored)))
    monkeypatch.setattr(reckoning_module, "read_run", lambda folder: stored[str(folder)])
    assert measured_before(tmp_path, known.environment.device_name, None) is known
    del stored["a"]
    assert measured_before(tmp_path, known.environment.device_name, None) is None
    assert measured_before(tmp_path, known.environment.device_name, known) is known
