"""Suspects remeasured: whose figures count, what is kept of the first process, and what ends it early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from fusebench.errors import DeviceUnfitError
from fusebench.runner import engine as engine_module
from fusebench.runner.run import looks, measured_case
from fusebench.runner.run.looks import PROCESSES
from fusebench.runner.run.resuming import Resumed
from fusebench.runner.run.strategy import RunStrategy
from fusebench.runner.workers.protocol import Failure, Measured, TimeTask
from fusebench.schema import Case, Result, Run, Sample, Status
from fusebench.timing.coldness import Coldness
from fusebench.timing.placement import CONTROL
from fusebench.verdict.baseline.compare_to_baseline import Suspect, judge_run
from fusebench.verdict.margins.rule import MarginRule
from helpers import session_bench
from helpers.session_bench import GOOD, SPLIT, Bench, by_kernel, measured

bench, cases = session_bench.bench, session_bench.cases
FIRST_US, AGAIN_US = 2.0, 1.5
"""Times of the kernel `good` in the first process, and in the fresh ones."""


def faster(task: TimeTask) -> Measured:
    """What a fresh process measures."""
    reply: Measured = measured(task, timer=task.timer)
    samples = [msgspec.structs.replace(one, span_ns=round(1000 * AGAIN_US)) if one.arm == GOOD else one for one in reply.samples]
    return msgspec.structs.replace(reply, samples=samples)


def answering(answer: Callable[[TimeTask], Measured | Failure], times: int = 16) -> Callable[[Any, int], None]:
    """Makes every fresh worker answer so."""
    return lambda worker, number: worker.replies.extend([answer] * times)


def notes(bench: Bench) -> list[str]:
    """What was told while it measured."""
    return [said[1] for said in bench.reporter.said if said[0] == "note"]


def remeasured(
    bench: Bench, cases: Sequence[Case], keys: Sequence[str], answer: Callable[[TimeTask], Measured | Failure] = faster, **options: Any
) -> tuple[Run, list[Sample]]:
    """A run in which the cases of `keys` are suspects, and its samples."""
    bench.pool.prepare = answering(answer)
    engine = bench.engine(suspects=lambda run: [Suspect(case=key, reason="planted") for key in keys], **options)
    engine.run(cases)
    return engine.record(), engine.samples


def time_us(run: Run, case: str) -> float:
    timing = by_kernel(run, case)[GOOD].measurement
    assert timing is not None
    value: float = timing.time_us.value
    return value


def test_figures_are_those_of_the_fresh_processes_and_samples_of_the_first_are_kept(bench: Bench, cases: list[Case]) -> None:
    run, samples = remeasured(bench, cases, ["scale:second"])
    assert [time_us(run, case.name) for case in cases] == pytest.approx([FIRST_US, AGAIN_US, FIRST_US])
    assert [summary.suspicion for summary in run.cases] == ["", "planted", ""]
    timing = by_kernel(run, "second")[GOOD].measurement
    assert timing is not None
    assert (timing.processes, timing.replicates) == (PROCESSES, PROCESSES * 2)
    assert {one.process for one in samples if one.case == "scale:second"} == set(range(PROCESSES + 1))
    assert {one.process for one in samples if one.case == "scale:first"} == {0}
    assert run.complete
    assert "case scale:second: suspect after its first measurement, so remeasured in 8 fresh processes: planted" in notes(bench)
    assert run.warnings == [], "the record says it of the case and its times"
    assert f"scale:second in process {PROCESSES + 1}" in run.environment.state["warm_up"]


def test_without_a_suspect_no_process_is_started(bench: Bench, cases: list[Case]) -> None:
    remeasured(bench, cases, [])
    assert bench.pool.started == []


def test_what_was_timed_is_timed_with_the_timer_of_the_first_process_and_on_seeds_of_its_own(bench: Bench, case: Case) -> None:
    run, _ = remeasured(bench, [case], [case.key])
    tasks = [task for worker in bench.pool.started for task in worker.tasks if isinstance(task, TimeTask)]
    assert len(tasks) == PROCESSES
    assert {(task.timer, frozenset(task.kernels), task.baseline) for task in tasks} == {("host", frozenset({SPLIT, GOOD}), SPLIT)}
    assert len({task.seed for task in tasks}) == PROCESSES
    assert by_kernel(run)["scale/wrong@1"].status is Status.WRONG, "what is wrong stays so, untimed"


def test_a_case_that_takes_the_results_of_a_suspect_takes_the_new_ones(bench: Bench, case: Case) -> None:
    again = msgspec.structs.replace(case, suite="model", name="again", weight=7.0)
    run, _ = remeasured(bench, [case, again], [case.key])
    assert (time_us(run, "even"), time_us(run, "again")) == pytest.approx((AGAIN_US, AGAIN_US))
    first, second = run.cases
    assert (second.case, second.same_as, second.suspicion) == (again, case.key, "planted")
    assert second.copy_us == first.copy_us
    assert {result.suite for result in run.results if result.case == "again"} == {"model"}


def test_a_kernel_that_fails_in_a_fresh_process_has_failed_and_the_others_keep_their_figures(bench: Bench, cases: list[Case]) -> None:
    crash = Failure(kernel=GOOD, status=Status.CRASHED, reason="planted crash")
    run, _ = remeasured(bench, cases, ["scale:first"], lambda task: crash)
    failed = by_kernel(run, "first")[GOOD]
    assert (failed.status, failed.measurement) == (Status.CRASHED, None)
    assert "planted crash" in failed.reason
    assert "fresh process 1" in failed.reason
    kept = by_kernel(run, "first")[SPLIT].measurement
    assert kept is not None
    assert kept.processes == 1
    assert run.cases[0].suspicion == "", "its figures are those of the first process"
    assert any("could not be remeasured" in text for text in run.warnings)


def test_a_baseline_that_fails_as_its_own_second_copy_has_failed(bench: Bench, cases: list[Case]) -> None:
    run, _ = remeasured(bench, cases, ["scale:first"], lambda task: Failure(kernel=CONTROL, status=Status.HUNG, reason="planted"))
    assert {kernel: result.status for kernel, result in by_kernel(run, "first").items() if kernel in (SPLIT, GOOD)} == {
        SPLIT: Status.HUNG,
        GOOD: Status.MEASURED,
    }


def test_fresh_samples_that_are_not_cold_leave_the_figures_of_the_first_process(bench: Bench, cases: list[Case]) -> None:
    """Else a regression would become incomparable, which a run's exit code does not show."""

    def warm(task: TimeTask) -> Measured:
        reply = faster(task)
        slow_memory = Coldness(touched_us=1.0, emptied_us=2.0, memory_gb_per_s=0.1)
        return msgspec.structs.replace(reply, memory_bytes=dict.fromkeys(task.kernels, 20_000), coldness=slow_memory)

    run, samples = remeasured(bench, cases, ["scale:first"], warm)
    assert time_us(run, "first") == pytest.approx(FIRST_US)
    assert (run.cases[0].suspicion, run.cases[0].not_cold) == ("", "")
    assert {one.process for one in samples} == {0}
    assert any("scale:first" in text and "could not be remeasured" in text and "not cold" in text for text in run.warnings)


def test_a_device_that_becomes_unfit_keeps_what_was_measured_first(bench: Bench, cases: list[Case]) -> None:
    bench.pool.prepare = answering(lambda task: Failure(status=Status.HUNG, reason="planted", unfit=True))
    engine = bench.engine(suspects=lambda run: [Suspect(case="scale:first", reason="planted")])
    with pytest.raises(DeviceUnfitError):
        engine.run(cases)
    run = engine.record()
    assert [time_us(run, case.name) for case in cases] == pytest.approx([FIRST_US] * 3)
    assert not run.complete


def test_a_budget_that_is_over_leaves_suspects_and_says_so(bench: Bench, cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 30))
    monkeypatch.setattr(engine_module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(now))}))
    run, _ = remeasured(bench, cases, ["scale:first", "scale:second"], budget_s=200.0)
    assert [summary.suspicion != "" for summary in run.cases] == [True, False, False]
    (left,) = [text for text in run.warnings if "the budget" in text]
    assert left == (
        "confirmation: the budget of 200 s was too short to remeasure these suspects as often as they may be: scale:second; "
        "--resume goes on with them"
    )
    assert run.complete, "every case was measured"


def test_an_interruption_keeps_what_was_measured_first_and_leaves_the_run_incomplete(bench: Bench, cases: list[Case]) -> None:
    def interrupt(task: TimeTask) -> Measured:
        if task.case.name == "second":
            raise KeyboardInterrupt
        return faster(task)

    bench.pool.prepare = answering(interrupt)
    engine = bench.engine(suspects=lambda run: [Suspect(case=f"scale:{name}", reason="planted") for name in ("first", "second")])
    with pytest.raises(KeyboardInterrupt):
        engine.run(cases)
    run = engine.record()
    assert [time_us(run, case.name) for case in cases] == pytest.approx([AGAIN_US, FIRST_US, FIRST_US])
    assert not run.complete
    assert bench.pool.alive == 0


def test_an_interruption_between_figures_leaves_no_samples_beside_those_of_the_first_process(
    bench: Bench, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on with it measures the case again, and would hold them twice."""

    def suspects(run: Run) -> list[Suspect]:
        monkeypatch.setattr(bench.reporter, "result", interrupted)
        return [Suspect(case=case.key, reason="planted")]

    def interrupted(result: Result) -> None:
        raise KeyboardInterrupt

    bench.pool.prepare = answering(faster)
    engine = bench.engine(suspects=suspects)
    with pytest.raises(KeyboardInterrupt):
        engine.run([case])
    assert (time_us(engine.record(), "even"), {one.process for one in engine.samples}) == (pytest.approx(FIRST_US), {0})


def test_a_run_that_was_interrupted_while_it_remeasured_goes_on_with_it(
    bench: Bench, cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed there stays as it is, and what was measured there is not measured a third time."""
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")

    def suspects(run: Run) -> Sequence[Suspect]:
        """Against a baseline in which the kernel `good` took half as long."""
        return judge_run(run, halved(run), MarginRule()).suspects

    def failing(task: TimeTask) -> Measured | Failure:
        if task.case.name == "third":
            raise KeyboardInterrupt
        return faster(task) if task.case.name == "second" else Failure(kernel=SPLIT, status=Status.CRASHED, reason="planted crash")

    bench.pool.prepare = answering(failing)
    stopped = bench.engine(suspects=suspects)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(cases)
    bench.pool.started.clear()
    bench.pool.prepare = answering(faster)
    engine = bench.engine(suspects=suspects, resumed=Resumed(stopped.record(), stopped.samples))
    engine.run(cases)
    run = engine.record()
    assert {task.case.name for worker in bench.pool.started for task in worker.tasks if isinstance(task, TimeTask)} == {"third"}
    assert by_kernel(run, "first")[SPLIT].status is Status.CRASHED
    assert [summary.suspicion != "" for summary in run.cases] == [False, True, True]
    assert run.complete


def halved(run: Run) -> Run:
    """The run with half the time of the kernel `good`."""

    def half(result: Result) -> Result:
        timing = result.measurement
        if timing is None or result.kernel != GOOD:
            return result
        time_us, replace = timing.time_us, msgspec.structs.replace
        time_us = replace(time_us, value=time_us.value / 2, low=time_us.low / 2, high=time_us.high / 2)
        return replace(result, measurement=replace(timing, time_us=time_us))

    return msgspec.structs.replace(run, results=[half(result) for result in run.results])


# Look by look, where the scatter between processes is known.


def known_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunStrategy, "_scatter_known", True)


def fresh_of(run: Run, case: str, kernel: str = GOOD) -> int:
    """Processes behind the kernel's time, 0 where they are those of the first measurement."""
    timing = by_kernel(run, case)[kernel].measurement
    assert timing is not None
    return timing.processes if timing.looks > 1 else 0


def open_until(processes: dict[str, int]) -> Callable[[Run], list[Suspect]]:
    """Suspects that so many fresh processes decide, by case."""

    def suspects(run: Run) -> list[Suspect]:
        kernels = (GOOD,)
        return [
            Suspect(case=f"scale:{name}", reason="planted", kernels=kernels)
            for name, most in processes.items()
            if fresh_of(run, name) < most
        ]

    return suspects


@pytest.mark.parametrize("processes", [1, 2])
def test_a_suspect_is_remeasured_until_a_look_decides_it(
    bench: Bench, cases: list[Case], monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Those of the earlier look come first, and samples of all fresh processes count, also of a run of several processes."""
    known_scatter(monkeypatch)
    bench.pool.prepare = answering(faster)
    plan = msgspec.structs.replace(session_bench.PLAN, processes=processes)
    engine = bench.engine(suspects=open_until({"first": 2, "second": 3, "third": 99}), plan=plan)
    engine.run(cases)
    run = engine.record()
    assert [fresh_of(run, case.name) for case in cases] == [2, 4, PROCESSES]
    assert {timing.looks for one in run.results if (timing := one.measurement) is not None} == {4}
    every = {case.name: {one.process for one in engine.samples if one.case == case.key} for case in cases}
    assert every == {name: set(range(processes + fresh)) for name, fresh in (("first", 2), ("second", 4), ("third", PROCESSES))}
    assert [time_us(run, case.name) for case in cases] == pytest.approx([AGAIN_US] * 3)
    warmed = {place for place in run.environment.state["warm_up"] if place.startswith("scale:second")}
    assert warmed == {"scale:second", *(f"scale:second in process {number + 1}" for number in range(1, processes + 4))}
    asked = [text for text in notes(bench) if "remeasure" in text]
    assert [text.split(":")[1].split()[0] for text in asked] == ["first", "second", "third", "second", "third", "third"]


def test_processes_of_the_first_measurement_confirm_nothing(bench: Bench, case: Case) -> None:
    bench.pool.prepare = answering(faster)
    plan = msgspec.structs.replace(session_bench.PLAN, processes=2)
    engine = bench.engine(suspects=lambda run: [Suspect(case=case.key, reason="planted")], plan=plan)
    engine.run([case])
    tasks = [len([task for task in worker.tasks if isinstance(task, TimeTask)]) for worker in bench.pool.started]
    assert tasks == [1] + [1] * PROCESSES
    assert fresh_of(engine.record(), "even") == PROCESSES


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_fresh_processes_time_suspects_and_the_baseline_kernel_and_the_others_keep_their_figures(
    bench: Bench, case: Case, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Planted defect: on a CPU fresh processes lacked the kernels of torch.compile, and unchanged chains read 4 to 10 % faster there."""
    known_scatter(monkeypatch)
    choose = looks.timed_again
    monkeypatch.setattr(measured_case, "timed_again", lambda results, again, device: choose(results, again, kind))
    bench.pool.prepare = answering(faster)
    engine = bench.engine(suspects=lambda run: [Suspect(case=case.key, reason="planted", kernels=(GOOD,))], kernel=None)
    bench.worker.failures.clear()
    engine.run([case])
    timed = {one.kernel: one.measurement for one in engine.record().results if one.measurement is not None}
    tasks = [task for worker in bench.pool.started for task in worker.tasks if isinstance(task, TimeTask)]
    assert len(tasks) == PROCESSES
    others = timed.keys() - {GOOD, SPLIT} if kind == "cpu" else set()
    assert {frozenset(task.kernels) for task in tasks} == {frozenset({GOOD, SPLIT, *others})}
    processes = {kernel: {one.process for one in engine.samples if one.arm == kernel} for kernel in timed}
    for kernel in (GOOD, SPLIT):
        assert timed.pop(kernel).looks == 4
        assert processes.pop(kernel) == set(range(PROCESSES + 1))
    assert timed
    assert {one.looks for one in timed.values()} == {1}
    assert [*processes.values()] == [{0}] * len(timed)


def test_a_resumed_run_goes_on_after_the_last_look(bench: Bench, cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")
    known_scatter(monkeypatch)

    def stopping(task: TimeTask) -> Measured:
        if len(bench.pool.started) > 2:
            raise KeyboardInterrupt
        return faster(task)

    suspects = open_until({"first": 3})
    bench.pool.prepare = answering(stopping)
    stopped = bench.engine(suspects=suspects)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(cases)
    assert fresh_of(stopped.record(), "first") == 2
    bench.pool.started.clear()
    bench.pool.prepare = answering(faster)
    engine = bench.engine(suspects=suspects, resumed=Resumed(stopped.record(), stopped.samples))
    engine.run(cases)
    assert fresh_of(engine.record(), "first") == 4
    assert sum(isinstance(task, TimeTask) for worker in bench.pool.started for task in worker.tasks) == 2
    assert {one.process for one in engine.samples if one.case == "scale:first"} == set(range(5))
    assert time_us(engine.record(), "first") == pytest.approx(AGAIN_US)


def test_a_run_without_a_budget_confirms_for_a_share_of_its_time(bench: Bench, cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 100_000, 60))
    monkeypatch.setattr(engine_module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(now))}))
    run, _ = remeasured(bench, cases, [case.key for case in cases])
    assert [summary.suspicion != "" for summary in run.cases] == [True, False, False]
    (left,) = [text for text in run.warnings if "too short to remeasure these suspects" in text]
    assert "may be: scale:second, scale:third;" in left
