"""A run with a precision: how many processes a case gets, what becomes of those that fail, and what is said where it is not reached."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.errors import DeviceUnfitError
from fusebench.runner.context import FIRST_START, START
from fusebench.runner.run import precision as precision_module
from fusebench.runner.run.precision import LOOKS, imprecise, measure_in_processes
from fusebench.runner.workers.protocol import CheckTask, Failure, Measured, TimeTask
from fusebench.schema import Case, Estimate, Measurement, Result, Role, Run, SamplingPlan, Status
from helpers import session_bench
from helpers.session_bench import GOOD, PLAN, SPLIT, Bench, FakeWorker, by_kernel, measured

bench, cases = session_bench.bench, session_bench.cases
PRECISE: SamplingPlan = msgspec.structs.replace(PLAN, precision=0.002)


def shifted(shift: float) -> Callable[[TimeTask], Measured]:
    """Times of a process in which kernel good takes longer by this share, in all its replicates alike."""

    def answer(task: TimeTask) -> Measured:
        reply: Measured = measured(task)
        return msgspec.structs.replace(
            reply,
            samples=[
                msgspec.structs.replace(one, span_ns=round(one.span_ns * 1000 * (1 + shift * (one.arm == GOOD)))) for one in reply.samples
            ],
        )

    return answer


def alternating(bench: Bench, shift: float) -> None:
    """Every other process is a slow one."""
    bench.worker.replies = [shifted(0.0)] * 9
    bench.pool.prepare = lambda worker, number: worker.replies.extend([shifted(shift * (number % 2))] * 9)


def run(bench: Bench, *cases: Case, **options: Any) -> Run:
    return bench.run(cases, **({"plan": PRECISE, "kernel": "good"} | options))


@pytest.mark.parametrize(("shift", "processes"), [(0.0, 8), (0.005, 12), (0.0065, 16), (0.03, 20)])
def test_processes_are_added_until_the_speedup_is_known(bench: Bench, case: Case, shift: float, processes: int) -> None:
    """Shifts of 0 and 0.5 % in turn scatter by 0.27 %: t(7) makes that 0.22 % from eight processes, t(11) 0.17 % from twelve."""
    alternating(bench, shift)
    timing = by_kernel(run(bench, case))[GOOD].measurement
    assert timing is not None
    assert (timing.processes, timing.replicates) == (processes, 2 * processes)
    assert 1 + sum(bool(worker.timed) for worker in bench.pool.started) == processes


def test_without_a_precision_one_process_measures(bench: Bench, case: Case) -> None:
    alternating(bench, 0.03)
    timing = by_kernel(run(bench, case, plan=PLAN))[GOOD].measurement
    assert timing is not None
    assert timing.processes == 1
    assert bench.pool.started == []


def test_a_number_of_processes_is_kept_whatever_they_find(bench: Bench, case: Case) -> None:
    alternating(bench, 0.03)
    record = run(bench, case, plan=msgspec.structs.replace(PLAN, processes=3))
    timing = by_kernel(record)[GOOD].measurement
    assert timing is not None
    assert (timing.processes, timing.replicates) == (3, 6)
    assert not [warning for warning in record.warnings if "known to" in warning], "no precision was asked for"


def test_what_is_not_reached_is_warned_about(bench: Bench, case: Case) -> None:
    alternating(bench, 0.03)
    (warning,) = run(bench, case).warnings
    assert warning.startswith(f"case scale:even: the speedup of {GOOD} is known to 0.7")
    assert warning.endswith("%, not to 0.20 %, after 40 replicates in 20 processes")


def test_samples_carry_their_process_whose_replicates_are_numbered_from_0(bench: Bench, case: Case) -> None:
    engine = bench.engine(plan=PRECISE, kernel="good")
    engine.run([case])
    found = {(sample.process, sample.replicate) for sample in engine.samples}
    assert found == {(process, replicate) for process in range(LOOKS[0]) for replicate in range(2)}


def test_each_process_is_asked_for_the_same_with_a_seed_of_its_own_and_the_first_ones_timer(bench: Bench, case: Case) -> None:
    run(bench, case)
    first, *others = [task for worker in (bench.worker, *bench.pool.started) for task in worker.tasks if isinstance(task, TimeTask)]
    assert len({task.seed for task in (first, *others)}) == LOOKS[0]
    assert (first.timer, {task.timer for task in others}) == ("auto", {"host"})
    assert [msgspec.structs.replace(task, seed=first.seed, timer="auto") for task in others] == [first] * (LOOKS[0] - 1)


def test_the_first_process_alone_says_what_code_runs(bench: Bench, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    task = TimeTask(case=case, kernels=(GOOD, SPLIT), baseline=SPLIT, plan=PRECISE, timer="auto", seed=1, digested=(GOOD, SPLIT))

    def ask(task: TimeTask, *_: Any) -> Measured:
        asked.append(task.digested)
        reply: Measured = measured(task)
        return reply

    context = bench.context(PRECISE)
    monkeypatch.setattr(context, "ask", ask)
    monkeypatch.setattr(context, "warn", pytest.fail)
    with context:
        measure_in_processes(task, context, enough=lambda replies: True)
    assert asked == [(GOOD, SPLIT)] + [()] * (LOOKS[0] - 1)


def test_processes_start_together_when_first_needed_stay_for_the_next_cases_and_end_with_the_run(bench: Bench, cases: list[Case]) -> None:
    alive: list[tuple[str, int]] = []

    def note(worker: FakeWorker, number: int) -> None:
        worker.before_each = lambda: alive.append((worker.tasks[-1].case.name, bench.pool.alive))
        worker.replies = [shifted(0.0), shifted(0.005 * (number % 2)), shifted(0.0)]

    bench.worker.replies = [shifted(0.0)] * 3
    bench.pool.prepare = note
    spending = run(bench, *cases).spending
    assert [how_many for case, how_many in alive if case == "first"] == [7] * 7
    assert [how_many for case, how_many in alive if case == "second"] == [7] * 7 + [11] * 4
    assert [how_many for case, how_many in alive if case == "third"] == [11] * 7, "no more than are needed are asked"
    assert bench.pool.alive == 0
    assert [worker.dismissed for worker in bench.pool.started] == [True] * 11
    assert spending is not None
    assert {FIRST_START, START} <= set(spending.phases_s)
    assert spending.phases_s["timed rounds"] == 3.0 * (8 + 12 + 8)


def test_processes_begin_to_start_beside_the_checks_and_stand_still_before_the_first_measures(bench: Bench, case: Case) -> None:
    seen: list[tuple[bool, int, int]] = []
    ready: list[int] = []
    bench.pool.prepare = lambda worker, number: setattr(worker, "until_ready", lambda: ready.append(number))
    bench.worker.before_each = lambda: seen.append((isinstance(bench.worker.tasks[-1], CheckTask), bench.pool.alive, len(ready)))
    run(bench, case)
    assert seen == [(True, 7, 0), (True, 7, 0), (False, 7, 7)]


def test_a_kernel_that_fails_in_a_later_process_is_out_and_the_others_are_measured(bench: Bench, case: Case) -> None:
    def fail_third(worker: FakeWorker, number: int) -> None:
        if number == 2:
            worker.replies = [lambda task: Failure(status=Status.CRASHED, reason="planted", kernel=GOOD)]

    bench.pool.prepare = fail_third
    engine = bench.engine(plan=PRECISE, kernel="good")
    engine.run([case])
    found = by_kernel(engine.record())
    assert (found[GOOD].status, found[GOOD].reason) == (Status.CRASHED, "while it was being timed: in process 3: planted")
    assert found[SPLIT].status is Status.MEASURED
    assert bench.worker.timed == [(GOOD, SPLIT), (SPLIT,)]
    assert {sample.arm for sample in engine.samples} == {"copy", "stream", "control", SPLIT}, "what was measured beside it is dropped"


def test_a_device_that_proves_unfit_in_a_later_process_ends_the_run(bench: Bench, cases: list[Case]) -> None:
    lost = Failure(status=Status.CRASHED, reason="records were dropped", unfit=True)
    bench.pool.prepare = lambda worker, number: worker.replies.extend([measured, lambda task: lost])
    engine = bench.engine(plan=PRECISE, kernel="good")
    with pytest.raises(DeviceUnfitError, match="case scale:second: records were dropped"):
        engine.run(cases)
    record = engine.record()
    assert {result.case for result in record.results} == {"first"}
    assert not record.complete
    assert bench.pool.alive == 0


def test_an_interruption_in_a_later_process_keeps_whole_cases_and_ends_every_process(bench: Bench, cases: list[Case]) -> None:
    def interrupt(task: TimeTask) -> Measured:
        raise KeyboardInterrupt

    bench.pool.prepare = lambda worker, number: worker.replies.extend([measured, interrupt])
    engine = bench.engine(plan=PRECISE, kernel="good")
    with pytest.raises(KeyboardInterrupt):
        engine.run(cases)
    assert {sample.case for sample in engine.samples} == {"scale:first"}
    assert not engine.record().complete
    assert bench.pool.alive == 0


def test_a_disturbed_process_measures_again_and_not_the_others(bench: Bench, case: Case) -> None:
    bench.monitor.touched = [[], ["somebody"]]
    timing = by_kernel(run(bench, case))[GOOD].measurement
    assert timing is not None
    assert timing.processes == 8
    assert [len(worker.timed) for worker in (bench.worker, *bench.pool.started)] == [1, 2, 1, 1, 1, 1, 1, 1]


@pytest.fixture
def clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock on which every measurement takes 10 s, and the start of further processes `start` s."""
    clock = SimpleNamespace(now=0.0, start=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(precision_module, "time", clock)

    def pass_by() -> None:
        clock.now += 10.0 * isinstance(bench.worker.tasks[-1], TimeTask)

    def prepare(worker: FakeWorker, number: int) -> None:
        clock.now += clock.start
        worker.before_each = lambda: setattr(clock, "now", clock.now + 10.0)

    bench.worker.before_each, bench.pool.prepare = pass_by, prepare
    return clock


def test_no_process_is_begun_after_the_budget(bench: Bench, case: Case, clock: SimpleNamespace) -> None:
    clock.start = 0.5
    record = run(bench, case, budget_s=30.0)
    timing = by_kernel(record)[GOOD].measurement
    assert timing is not None
    assert timing.processes == 3
    (warning,) = record.warnings
    assert warning == "case scale:even: the budget ended after process 3 of 8 to 20"
    seconds = [task.seconds for worker in bench.pool.started for task in worker.tasks if isinstance(task, TimeTask)]
    assert seconds == pytest.approx([16.5, 6.5], abs=0.1), "each is given what is left"


def test_a_budget_that_ends_while_processes_start_leaves_the_first_and_what_it_lacks_is_said(
    bench: Bench, case: Case, clock: SimpleNamespace
) -> None:
    clock.start = 30.0
    record = run(bench, case, budget_s=30.0)
    timing = by_kernel(record)[GOOD].measurement
    assert timing is not None
    assert (timing.processes, timing.replicates) == (1, 2)
    assert record.warnings == [
        "case scale:even: the budget ended after process 1 of 8 to 20",
        f"case scale:even: the speedup of {GOOD} is not known to 0.20 %: its interval is one process' alone, and what differs between "
        "processes is not in it",
    ]


def test_a_budget_that_the_first_process_used_up_starts_no_others(bench: Bench, case: Case, clock: SimpleNamespace) -> None:
    run(bench, case, budget_s=9.0)
    assert bench.pool.started == []


def test_what_the_processes_cut_short_and_repeated_is_said(bench: Bench, case: Case) -> None:
    bench.worker.replies = [lambda task: measured(task, timer_retries=1)]
    bench.pool.prepare = lambda worker, number: worker.replies.append(
        lambda task: measured(task, timer_retries=1, cut_short=number == 3, warm_up={"seconds": number})
    )
    record = run(bench, case)
    assert record.warnings == [
        "case scale:even: the budget ended before all 2 replicates",
        "case scale:even: the timer failed 8 times, as where records are lost, and the same calls were timed again",
    ]
    assert record.environment.state["warm_up"]["scale:even in process 4"] == {"seconds": 3}


def test_the_reporter_hears_which_process_measures(bench: Bench, case: Case) -> None:
    run(bench, case)
    said = [entry[1] for entry in bench.reporter.said if entry[0] == "step" and entry[1].startswith("measure")]
    assert said == [f"measure in process {number} of at most {LOOKS[-1]}" for number in range(1, LOOKS[0] + 1)]


def result(kernel: str, role: Role, half: float, processes: int = 4) -> Result:
    speedup = None if math.isinf(half) else Estimate(2.0, 2.0 * math.exp(-half), 2.0 * math.exp(half))
    timing = Measurement(
        time_us=Estimate(10.0, 9.9, 10.1), busy_us=9.0, kernels=1, host_us=None, speedup=speedup, sol=None, gb_per_s=1.0,
        extra_memory_bytes=None, replicates=12 * processes, rounds=20, processes=processes,
    )  # fmt: skip
    return Result(
        case="c", suite="s", op="scale", kernel=kernel, role=role, status=Status.MEASURED, shape="", measurement=timing
    )  # fmt: skip


def test_only_fused_kernels_count_where_there_are_any() -> None:
    baseline, fused = result("split", Role.SPLIT, math.inf), result("fused", Role.FUSED, 0.001)
    eager = result("eager", Role.COMPILED, 0.1)
    assert imprecise([baseline, fused, eager], PRECISE) == []
    assert imprecise([baseline, eager], PRECISE) == [
        "the speedup of eager is known to 10.00 %, not to 0.20 %, after 48 replicates in 4 processes"
    ]
    assert imprecise([baseline], PRECISE) == []
    assert [text.split()[3] for text in imprecise([fused, result("other", Role.FUSED, 0.003)], PRECISE)] == ["other"]


def test_nothing_is_imprecise_that_no_precision_was_asked_of() -> None:
    assert imprecise([result("fused", Role.FUSED, 0.1)], PLAN) == []


def test_one_process_knows_no_speedup_however_narrow_its_interval() -> None:
    (text,) = imprecise([result("fused", Role.FUSED, 1e-6, processes=1)], PRECISE)
    assert "what differs between processes is not in it" in text
