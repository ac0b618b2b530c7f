"""A run from cases to its record: what is timed, what is left out and why, what an interruption leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from fusebench.errors import DeviceUnfitError, UsageError
from fusebench.registry import Collection
from fusebench.registry.collection import Problem
from fusebench.runner import engine as engine_module
from fusebench.runner.run import measured_case as measured_case_module
from fusebench.runner.run.options import default_plan
from fusebench.runner.session import attempt
from fusebench.runner.workers.protocol import TimeTask
from fusebench.schema import FAILED_STATUSES, CacheState, Case, ExitCode, Role, Status, VerdictKind
from helpers import session_bench
from helpers.session_bench import FAST, GOOD, SPLIT, WRONG, Bench, accuracy, by_kernel

bench, cases = session_bench.bench, session_bench.cases


def test_a_run_holds_every_kernel_with_its_status_and_figures(bench: Bench, case: Case) -> None:
    run = bench.run([case], kernel="[fgw]*")
    found = by_kernel(run)
    assert {kernel: result.status for kernel, result in found.items()} == {
        SPLIT: Status.MEASURED, GOOD: Status.MEASURED, WRONG: Status.WRONG, FAST: Status.NOT_RUNNABLE,
    }  # fmt: skip
    timing = found[GOOD].measurement
    assert timing is not None
    assert timing.speedup is not None
    assert (timing.time_us.value, timing.speedup.value, timing.sol) == pytest.approx((2.0, 2.0, 0.45))
    assert found[GOOD].accuracy == accuracy()
    assert run.suites[0].weighted_speedup == pytest.approx({"good@1": 2.0, "best_fused": 2.0})
    assert (run.complete, run.exit_code, run.timer) == (True, ExitCode.PASS, "host")
    assert {kernel.id for kernel in run.kernels} == set(found)
    assert run.cases[0].baseline == SPLIT


@pytest.fixture
def clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every check and every measurement takes 10 s."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    for module in (engine_module, measured_case_module):
        monkeypatch.setattr(module, "time", clock)
    bench.worker.before_each = lambda: setattr(clock, "now", clock.now + 10.0)


@pytest.mark.usefixtures("clock")
def test_each_case_gets_its_even_share_of_what_is_left_of_the_budget(bench: Bench, cases: list[Case]) -> None:
    run = bench.run(cases, budget_s=300.0, kernel="good")
    # Two checks of 10 s precede each measurement of 10 s: 300 / 3 - 20, then (300 - 30) / 2 - 20, then 300 - 60 - 20.
    assert [task.seconds for task in bench.worker.tasks if isinstance(task, TimeTask)] == [80.0, 115.0, 220.0]
    assert run.complete


@pytest.mark.usefixtures("clock")
def test_cases_beyond_the_budget_are_not_measured_and_the_run_is_undecided(bench: Bench, cases: list[Case]) -> None:
    run = bench.judge(bench.run(cases, budget_s=20.0, kernel="[fg]*"))
    assert by_kernel(run, "first")[GOOD].status is Status.MEASURED, "the first case is always measured"
    for case in ("second", "third"):
        found = by_kernel(run, case)
        assert {found[GOOD].status, found[SPLIT].status} == {Status.NOT_MEASURED}
        assert "the budget of 20 s ended before this case" in found[GOOD].reason
        assert found[FAST].status is Status.NOT_RUNNABLE
        verdict = found[GOOD].verdict
        assert verdict is not None
        assert verdict.kind is VerdictKind.UNDECIDED
    assert run.exit_code == ExitCode.UNDECIDED
    assert not run.complete, "a run that lacks cases is no baseline"
    assert len(run.cases) == 3


def test_a_device_that_is_touched_every_time_ends_the_run_and_what_was_measured_stays(bench: Bench, cases: list[Case]) -> None:
    bench.monitor.touched = [[], ["somebody"], ["somebody"], ["somebody"]]
    engine = bench.engine(kernel="good")
    with pytest.raises(DeviceUnfitError, match=r"case scale:second: .* touched during each of 3 measurements \(somebody\)"):
        engine.run(cases)
    run = engine.record()
    assert by_kernel(run, "first")[GOOD].status is Status.MEASURED
    assert by_kernel(run, "second") == by_kernel(run, "third") == {}
    assert not run.complete
    assert bench.reporter.said[-1] == ("end",)


def test_an_interruption_leaves_an_incomplete_record(bench: Bench, cases: list[Case]) -> None:
    def interrupt() -> None:
        if len(bench.worker.tasks) > 4:
            raise KeyboardInterrupt

    bench.worker.before_each = interrupt
    engine = bench.engine(kernel="good")
    with pytest.raises(KeyboardInterrupt):
        engine.run(cases)
    run = engine.record()
    assert not run.complete
    assert {result.case for result in run.results} == {"first"}
    assert len(engine.samples) == 2 * 2 * 5
    assert bench.reporter.said[-1] == ("end",)


def test_an_interruption_while_a_case_is_timed_leaves_what_was_final_of_it(bench: Bench, case: Case) -> None:
    def interrupt() -> None:
        if len(bench.worker.timed) == 2:
            raise KeyboardInterrupt

    bench.worker.before_each, bench.monitor.touched = interrupt, [["somebody"]]
    engine = bench.engine(kernel="[fgw]*")
    with pytest.raises(KeyboardInterrupt):
        engine.run([case])
    run = engine.record()
    assert {kernel: result.status for kernel, result in by_kernel(run).items()} == {FAST: Status.NOT_RUNNABLE, WRONG: Status.WRONG}
    assert (run.cases, engine.samples, run.complete) == ([], [], False)
    assert run.warnings == ["case scale:even: measured again, because the device was touched: somebody"]


def test_a_kernel_file_that_does_not_load_fails_the_run_of_its_op_only(bench: Bench, case: Case, root: Path) -> None:
    broken = Problem(root / "scale" / "broken.py", "line 3: ImportError: planted", op="scale")
    bench.collection = with_problems(bench.collection, [broken])
    run = bench.judge(bench.run([case], kernel="good"))
    assert run.exit_code == ExitCode.KERNEL_FAILED
    assert [warning for warning in run.warnings if "not loaded" in warning and "broken.py" in warning and "planted" in warning]
    bench.collection = with_problems(bench.collection, [Problem(root / "other" / "broken.py", "planted", op="other")])
    harmless = bench.judge(bench.run([case], kernel="good"))
    assert harmless.exit_code == ExitCode.PASS
    assert harmless.warnings == []


def with_problems(collection: Collection, problems: list[Problem]) -> Collection:
    return Collection(roots=collection.roots, ops=collection.ops, kernels=collection.kernels, problems=problems)


def test_a_missing_split_reference_stops_the_run(bench: Bench, case: Case) -> None:
    kernels = {key: kernel for key, kernel in bench.collection.kernels.items() if key != SPLIT}
    bench.collection = Collection(roots=bench.collection.roots, ops=bench.collection.ops, kernels=kernels)
    with pytest.raises(UsageError, match="split reference scale/split@1 is not loaded"):
        bench.run([case])


def test_the_reporter_hears_of_every_case_and_every_result(bench: Bench, cases: list[Case]) -> None:
    bench.run(cases[:2], kernel="[fg]*")
    said = bench.reporter.said
    assert said[0] == ("begin",)
    assert [entry[1:4] for entry in said if entry[0] == "case"] == [(1, 2, "scale:first"), (2, 2, "scale:second")]
    assert [entry[1:] for entry in said if entry[0] == "result"] == 2 * [
        (FAST, Status.NOT_RUNNABLE), (GOOD, Status.MEASURED), (SPLIT, Status.MEASURED),
    ]  # fmt: skip
    assert said[-1] == ("end",)


def test_a_gpu_gets_more_replicates_than_a_cpu() -> None:
    assert default_plan("cuda").replicates > default_plan("cpu").replicates >= 2
    assert default_plan("cpu", CacheState.WARM).cache is CacheState.WARM


def test_a_case_of_the_same_work_as_an_earlier_one_takes_its_results_and_says_so(bench: Bench, case: Case) -> None:
    """One shape stands in the suites of several models; a parameter that is written out where it equals its default is no difference."""
    again = msgspec.structs.replace(case, suite="model", name="again", weight=7.0)
    run = bench.run([case, again], kernel="[fg]*")
    assert len(bench.worker.timed) == 1
    first, second = run.cases
    assert (first.same_as, second.same_as) == ("", case.key)
    assert second.case == again
    assert second.copy_us == first.copy_us
    assert [result.kernel for result in run.results if result.case == "again"] == list(by_kernel(run))
    for result in run.results:
        if result.case == "again":
            assert result.suite == "model"
            assert result.measurement == by_kernel(run)[result.kernel].measurement
    assert {suite.name for suite in run.suites} == {"scale", "model"}


@pytest.mark.usefixtures("clock")
def test_a_case_that_the_budget_skipped_gives_no_results_to_others(bench: Bench, cases: list[Case]) -> None:
    again = msgspec.structs.replace(cases[1], name="again")
    run = bench.run([*cases[:2], again], budget_s=20.0, kernel="[fg]*")
    assert by_kernel(run, "again")[GOOD].status is Status.NOT_MEASURED
    assert [summary.same_as for summary in run.cases] == ["", "", ""]


def test_a_run_says_where_its_time_went(bench: Bench, cases: list[Case]) -> None:
    spending = bench.run(cases, kernel="[fg]*").spending
    assert spending is not None
    assert spending.phases_s["timed rounds"] == 9.0
    assert spending.phases_s["first calls"] == 6.0
    assert "accuracy checks" in spending.phases_s
    assert spending.kernels_s["scale/good@1"] >= 1.5, "its first calls, and what its checks took"
    assert "scale/wrong@1" not in spending.kernels_s
    assert "copy" not in spending.kernels_s, "the yardstick is no kernel"


def test_a_peer_that_fails_is_shown_and_does_not_change_the_exit_code(bench: Bench, case: Case) -> None:
    """Another library's kernel is not ours to mend: it must not turn our nightly red.  The same failure of a kernel of ours does."""
    run = bench.run([case], kernel="[fgw]*")
    results = [msgspec.structs.replace(result, role=Role.PEER) if result.status in FAILED_STATUSES else result for result in run.results]
    theirs = bench.judge(msgspec.structs.replace(run, results=results))
    assert by_kernel(theirs)[WRONG].verdict is not None
    assert theirs.exit_code == ExitCode.PASS
    assert bench.judge(run).exit_code == ExitCode.KERNEL_FAILED


def raised_by(raising: Callable[[], None]) -> Exception | KeyboardInterrupt | None:
    """The exception that a session kept whose engine is interrupted, and then does `raising`."""

    def run(items: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raising()

    return attempt(cast("Any", SimpleNamespace(run=run)), [])


def test_an_error_that_ctrl_c_led_to_is_the_interruption_that_it_was() -> None:
    """An interrupted wait for a check ended in `RuntimeError: cannot release un-acquired lock`, and the run with exit code 70."""

    def unlock() -> None:
        threading.Lock().release()

    def complain() -> None:
        raise UsageError("said on purpose") from None

    assert isinstance(raised_by(unlock), KeyboardInterrupt)
    assert isinstance(raised_by(complain), UsageError)
    assert isinstance(raised_by(lambda: None), KeyboardInterrupt)
