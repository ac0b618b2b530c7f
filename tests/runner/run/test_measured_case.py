"""One case of a run: what is timed and what is not, what becomes of kernels that fail on the way, what is said of the timing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fusebench.errors import DeviceUnfitError
from fusebench.registry import Collection
from fusebench.report.wording import part_label, part_notes
from fusebench.runner.case_kernels import case_kernels, work_of
from fusebench.runner.workers.ahead import Checks
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Checked, CheckTask, Failure, Measured, TimeTask
from fusebench.schema import Case, ExitCode, Role, Status
from helpers import session_bench
from helpers.session_bench import GOOD, SPLIT, WRONG, Bench, accuracy, by_kernel, measured

bench, cases = session_bench.bench, session_bench.cases


def failure(kernel: str, status: Status = Status.CRASHED) -> Callable[[TimeTask], Failure]:
    return lambda task: Failure(status=status, reason="planted", kernel=kernel)


def test_a_wrong_kernel_is_never_timed(bench: Bench, case: Case) -> None:
    run = bench.run([case])
    assert bench.worker.timed == [(GOOD, SPLIT)]
    assert by_kernel(run)[WRONG].reason == "off by half"
    assert bench.judge(run).exit_code == ExitCode.KERNEL_FAILED


def test_checks_that_were_made_ahead_are_not_repeated_and_a_wrong_one_is_on_the_same_draws(bench: Bench, case: Case) -> None:
    engine = bench.engine()
    work = work_of(case_kernels(bench.collection, case, "cpu"))
    wrong = msgspec.structs.replace(accuracy(passed=False), seed=9, reason="planted")
    engine.strategy._checks = Checks(passed={work: {GOOD: accuracy()}}, wrong={work: {SPLIT: wrong}})  # type: ignore[attr-defined]
    engine.run([case])
    run = engine.record()
    checks = {task.kernel: task.seed for task in bench.worker.tasks if isinstance(task, CheckTask)}
    assert checks == {SPLIT: 9, WRONG: 9}
    found = by_kernel(run)
    assert (found[GOOD].status, found[GOOD].accuracy) == (Status.MEASURED, accuracy())
    assert found[SPLIT].status is Status.MEASURED
    assert f"case {case.key}: {SPLIT} was wrong, and then right on the same draws: planted" in run.warnings
    assert WRONG not in bench.worker.timed[0]


def test_every_measurement_has_a_seed_of_its_own(bench: Bench, cases: list[Case]) -> None:
    bench.run(cases)
    assert len({task.seed for task in bench.worker.tasks if isinstance(task, TimeTask)}) == 3


def test_a_kernel_that_fails_while_it_is_timed_is_out_and_the_others_are_measured(bench: Bench, case: Case) -> None:
    bench.worker.replies = [failure(GOOD, Status.HUNG)]
    run = bench.run([case])
    found = by_kernel(run)
    assert bench.worker.timed == [(GOOD, SPLIT), (SPLIT,)]
    assert (found[GOOD].status, found[GOOD].reason) == (Status.HUNG, "while it was being timed: planted")
    assert found[GOOD].accuracy is not None, "it did pass the gate"
    assert found[SPLIT].status is Status.MEASURED
    assert len(run.results) == len(found), "no kernel is listed twice"


RAISES = "scale/raises@1"


@pytest.mark.parametrize("guilty", [GOOD, RAISES, None], ids=["another", "itself", "nobody_twice"])
def test_who_spoils_a_process_of_timed_kernels_is_out_and_not_the_one_that_suffers(bench: Bench, case: Case, guilty: str | None) -> None:
    """`raises` fails wherever the guilty kernel is timed beside it; the fakes check every kernel as right."""
    failed: list[TimeTask] = []

    def timed(task: TimeTask) -> Measured | Failure:
        spoiled = RAISES in task.kernels and (guilty in task.kernels if guilty is not None else not failed)
        if not spoiled:
            return measured(task)
        failed.append(task)
        return Failure(status=Status.CRASHED, reason="planted", kernel=RAISES)

    bench.worker.replies = [timed] * 20
    found = by_kernel(bench.run([case], kernel="[gr]*s,good"))
    assert found[SPLIT].status is Status.MEASURED
    if guilty == GOOD:
        assert found[RAISES].status is Status.MEASURED
        assert found[GOOD].status is Status.CRASHED
        assert found[GOOD].reason == (
            "while it was being timed: it spoils its process for others: with it scale/raises@1 fails, and not without it: planted"
        )
        assert bench.pool.failures.taken_over(GOOD, "scale:other") is not None
    else:
        assert found[GOOD].status is Status.MEASURED
        assert found[RAISES].status is Status.CRASHED


def test_a_memory_that_does_not_hold_all_kernels_at_once_spoils_none_of_them(bench: Bench, case: Case) -> None:
    """`raises` has the largest temporaries, and fails wherever three others are timed beside it."""

    def timed(task: TimeTask) -> Measured | Failure:
        if RAISES not in task.kernels or len(task.kernels) < 4:
            return measured(task)
        return Failure(status=Status.OUT_OF_MEMORY, reason="planted", kernel=RAISES)

    bench.worker.replies = [timed] * 20
    bench.worker.failures[WRONG] = Checked(accuracy=accuracy())
    found = by_kernel(bench.run([case], kernel="[gr]*s,good,wrong"))
    assert len(bench.worker.timed[0]) == 4
    assert {found[name].status for name in found if name != RAISES} == {Status.MEASURED}
    assert found[RAISES].status is Status.OUT_OF_MEMORY
    assert found[RAISES].reason == (
        "while it was being timed: planted (only while all kernels of its case are timed in one process; no other one is to blame alone)"
    )


@pytest.mark.parametrize("arm", [SPLIT, "control"])
def test_a_baseline_that_fails_while_it_is_timed_takes_the_case_with_it_but_no_blame_falls_on_others(
    bench: Bench, case: Case, arm: str
) -> None:
    bench.worker.replies = [failure(arm)]
    run = bench.run([case])
    found = by_kernel(run)
    assert found[SPLIT].status is Status.CRASHED
    assert (found[GOOD].status, found[GOOD].reason) == (Status.NOT_MEASURED, f"not timed: its baseline {SPLIT} failed")
    assert [summary.copy_us for summary in run.cases] == [None]


@pytest.mark.parametrize(("arm", "said"), [("copy", "while copy was being timed"), ("", "while no kernel was being timed")])
def test_a_failure_that_is_no_kernels_fault_is_everybodys(bench: Bench, case: Case, arm: str, said: str) -> None:
    bench.worker.replies = [failure(arm, Status.OUT_OF_MEMORY)]
    found = by_kernel(bench.run([case]))
    assert {found[GOOD].status, found[SPLIT].status} == {Status.OUT_OF_MEMORY}
    assert said in found[GOOD].reason


def test_without_a_right_baseline_nothing_is_timed(bench: Bench, case: Case) -> None:
    bench.worker.failures[SPLIT] = Failure(status=Status.COMPILE_ERROR, reason="planted", kernel=SPLIT)
    run = bench.run([case])
    found = by_kernel(run)
    assert bench.worker.timed == []
    assert found[SPLIT].status is Status.COMPILE_ERROR
    assert (found[GOOD].status, found[GOOD].reason) == (Status.NOT_MEASURED, f"not timed: its baseline {SPLIT} failed")
    assert bench.judge(run).exit_code == ExitCode.KERNEL_FAILED


def test_without_a_baseline_for_the_device_nothing_is_timed(
    bench: Bench, case: Case, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection.ops["scale"], "baselines", ("fast@2",), raising=False)
    run = bench.run([case], kernel="good")
    assert by_kernel(run)[GOOD].reason == "not timed: no baseline of scale runs on cpu"
    assert bench.judge(run).exit_code == ExitCode.UNDECIDED


def test_a_measurement_that_was_disturbed_is_repeated(bench: Bench, case: Case) -> None:
    bench.monitor.touched = [["foreign process train.py (pid 7)"]]
    engine = bench.engine(kernel="good")
    engine.run([case])
    run = engine.record()
    assert len(bench.worker.timed) == 2
    assert len(engine.samples) == 2 * 2 * 5, "the samples of the disturbed measurement are dropped"
    (warning,) = run.warnings
    assert "measured again, because the device was touched: foreign process train.py (pid 7)" in warning
    assert ("note", warning) in bench.reporter.said
    assert by_kernel(run)[GOOD].status is Status.MEASURED


def test_a_timer_that_lost_records_again_and_again_ends_the_run(bench: Bench, case: Case) -> None:
    bench.worker.replies = [lambda task: Failure(status=Status.CRASHED, reason="records were dropped", unfit=True)]
    with pytest.raises(DeviceUnfitError, match="case scale:even: records were dropped"):
        bench.run([case])


@pytest.mark.parametrize("late", [0, 1])
def test_an_arm_whose_calls_waited_for_the_host_is_named(bench: Bench, case: Case, late: int) -> None:
    bench.worker.replies = [lambda task: measured(task, late_calls={GOOD: late}, repeated_rounds=3)]
    run = bench.run([case])
    found = [text for text in run.warnings if "the device waited for the host inside of" in text]
    assert [f"{late} of" in text and f"calls of {GOOD}: their gaps" in text for text in found] == [True] * late
    assert run.cases[0].repeated_rounds == 3


def test_what_was_unusual_about_the_timing_is_recorded(bench: Bench, case: Case) -> None:
    bench.worker.replies = [
        lambda task: measured(task, timer="cuda_events", timer_fallback="no CUPTI", cut_short=True, timer_retries=2, warm_up={"seconds": 3})
    ]
    run = bench.run([case])
    assert (run.timer, run.timer_fallback) == ("cuda_events", "no CUPTI")
    said = "\n".join(run.warnings)
    for words in (
        "timer cuda_events instead of the device's default: no CUPTI",
        "budget ended before all 2 replicates",
        "failed 2 times, as where records are lost, and the same calls were timed again",
    ):
        assert words in said
    assert run.environment.state["warm_up"] == {"scale:even": {"seconds": 3}}


@pytest.mark.usefixtures("forked_workers")
def test_with_real_processes_kernels_that_fail_only_while_they_are_timed_are_dropped_and_the_others_measured(
    bench: Bench, case: Case, worker: WorkerProcess
) -> None:
    bench.pool.native = worker
    engine = bench.engine(kernel="[dgr]*")
    engine.run([case])
    found = {kernel.removeprefix("scale/"): result for kernel, result in by_kernel(engine.record()).items()}
    assert {name: result.status for name, result in found.items()} == {
        "split@1": Status.MEASURED,
        "good@1": Status.MEASURED,
        "raises@1": Status.CRASHED,
        "does_not_compile@1": Status.COMPILE_ERROR,
        "raises_when_timed@1": Status.CRASHED,
        "dies_when_timed@1": Status.CRASHED,
        "rests_when_timed@1": Status.WRONG,
    }
    assert "planted for later (raises_when_timed.py, line" in found["raises_when_timed@1"].reason
    assert "exit status 9" in found["dies_when_timed@1"].reason
    assert found["rests_when_timed@1"].reason.startswith("right when checked, wrong when timed: output 'x': ")
    assert {sample.arm for sample in engine.samples} == {"copy", "stream", "control", SPLIT, GOOD}


def test_a_kernel_whose_timed_outputs_were_wrong_loses_its_times_and_the_others_keep_theirs(bench: Bench, case: Case) -> None:
    bench.worker.replies = [lambda task: measured(task, wrong={GOOD: "right when checked, wrong when timed: planted"})]
    run = bench.run([case])
    found = by_kernel(run)
    assert (found[GOOD].status, found[GOOD].measurement) == (Status.WRONG, None)
    assert found[GOOD].reason == "right when checked, wrong when timed: planted"
    assert found[SPLIT].measurement is not None
    assert bench.judge(run).exit_code == ExitCode.KERNEL_FAILED
    assert len(run.results) == len(found), "no kernel is listed twice"


@pytest.mark.parametrize("arm", [SPLIT, "control"])
def test_a_baseline_whose_timed_outputs_were_wrong_takes_the_case_with_it(bench: Bench, case: Case, arm: str) -> None:
    bench.worker.replies = [lambda task: measured(task, wrong={arm: "planted"})]
    found = by_kernel(bench.run([case]))
    assert (found[SPLIT].status, found[SPLIT].reason) == (Status.WRONG, "planted")
    assert (found[GOOD].status, found[GOOD].reason) == (Status.NOT_MEASURED, f"not timed: its baseline {SPLIT} failed")


def test_a_suspicious_time_gives_no_speedup_and_no_part_of_a_sum(bench: Bench, case: Case) -> None:
    def weighted(suspicious: dict[str, str]) -> dict[str, float]:
        bench.worker.replies = [lambda task: measured(task, suspicious=suspicious)]
        run = bench.run([case])
        result = by_kernel(run)[GOOD]
        assert result.measurement is not None
        assert (result.measurement.speedup is None) == bool(suspicious)
        assert result.suspicious == suspicious.get(GOOD, "")
        return run.suites[0].weighted_speedup

    assert weighted({})
    assert not weighted({GOOD: "it left work behind"})
    assert not weighted({"control": "it left work behind"}), "a second copy of the baseline"


def test_outputs_that_could_not_be_compared_are_told(bench: Bench, case: Case) -> None:
    bench.worker.replies = [lambda task: measured(task, unverified="planted")]
    assert any("outputs of timed calls were not compared: planted" in warning for warning in bench.run([case]).warnings)


def test_a_peer_outside_the_contract_is_timed_for_information(bench: Bench, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.collection.kernels[WRONG], "role", Role.PEER)
    answer = bench.worker.ask
    found = msgspec.structs.replace(accuracy(passed=False), errors_only=True, reason="output 'x': twice the error")

    def ask(task: CheckTask | TimeTask, on_progress: Callable[..., None]) -> Checked | Measured | Failure:
        said = answer(task, on_progress)
        return Checked(accuracy=found) if isinstance(task, CheckTask) and task.kernel == WRONG else said

    bench.worker.ask = ask  # type: ignore[method-assign]
    bench.worker.replies = [lambda task: measured(task, wrong={WRONG: "right when checked, wrong when timed: planted"})]
    run = bench.judge(bench.run([case]))
    result = by_kernel(run)[WRONG]
    assert (result.status, result.outside_contract) == (Status.MEASURED, True)
    assert result.covers == "outside the contract: output 'x': twice the error"
    assert result.measurement is not None
    assert result.measurement.time_us.value == pytest.approx(3.0)
    assert (result.measurement.speedup, result.measurement.sol) == (None, None)
    assert (result.verdict, by_kernel(run)[GOOD].outside_contract) == (None, False)
    assert result.accuracy is not None
    assert not result.accuracy.passed
    assert part_label(result) == result.covers
    (note,) = part_notes(run)
    assert note.startswith(f"{WRONG} is {result.covers}; its time is for information and is compared with no other kernel's: even 3.00")


@pytest.mark.parametrize(
    ("role", "changes"),
    [
        (Role.FUSED, {"errors_only": True}),
        (Role.PEER, {"errors_only": False}),
        (Role.PEER, {"errors_only": True, "within_loose_tolerance": False}),
    ],
    ids=["no peer", "another defect", "far off"],
)
def test_no_other_wrong_kernel_is_timed(
    bench: Bench, case: Case, monkeypatch: pytest.MonkeyPatch, role: Role, changes: dict[str, bool]
) -> None:
    monkeypatch.setattr(bench.collection.kernels[WRONG], "role", role)
    answer = bench.worker.ask
    found = msgspec.structs.replace(accuracy(passed=False), **changes)

    def ask(task: CheckTask | TimeTask, on_progress: Callable[..., None]) -> Checked | Measured | Failure:
        said = answer(task, on_progress)
        return Checked(accuracy=found) if isinstance(task, CheckTask) and task.kernel == WRONG else said

    bench.worker.ask = ask  # type: ignore[method-assign]
    run = bench.run([case])
    assert bench.worker.timed == [(GOOD, SPLIT)]
    assert by_kernel(run)[WRONG].status is Status.WRONG
