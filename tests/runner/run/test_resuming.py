"""A run that was stopped and goes on: what is taken over, what is measured again, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fusebench.errors import UsageError
from fusebench.runner import context
from fusebench.runner.run.precision import LOOKS
from fusebench.runner.run.resuming import Resumed
from fusebench.runner.workers.protocol import TimeTask
from fusebench.schema import Case, Environment, Run, Sample
from fusebench.verdict.baseline.compare_to_baseline import Suspect
from fusebench.verdict.margins.rule import MarginRule
from helpers import session_bench
from helpers.session_bench import PLAN, Bench, FakeWorker, by_kernel

bench, cases = session_bench.bench, session_bench.cases


def stopped_after(bench: Bench, cases: list[Case], count: int) -> tuple[Run, list[Sample]]:
    """A run that was interrupted when `count` of the cases were measured."""
    engine = bench.engine(kernel="[fg]*")

    def interrupt() -> None:
        if len(bench.worker.timed) == count + 1:
            raise KeyboardInterrupt

    bench.worker.before_each = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.run(cases)
    bench.worker.before_each = lambda: None
    bench.worker.tasks.clear()
    return engine.record(), engine.samples


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEBENCH_COMMIT", "0123456789abcdef")


@pytest.mark.usefixtures("committed")
def test_a_stopped_run_goes_on_with_the_cases_that_it_lacks(bench: Bench, cases: list[Case]) -> None:
    stopped, samples = stopped_after(bench, cases, 1)
    run = bench.run(cases, kernel="[fg]*", resumed=Resumed(stopped, samples))
    assert [task.case.name for task in bench.worker.tasks if isinstance(task, TimeTask)] == ["second", "third"]
    assert run.complete
    assert run.resumed_from == [stopped.id]
    assert by_kernel(run, "first") == by_kernel(stopped, "first")
    assert [summary.case.name for summary in run.cases] == ["first", "second", "third"]


@pytest.mark.usefixtures("committed")
def test_the_samples_of_taken_over_cases_are_part_of_the_run(bench: Bench, cases: list[Case]) -> None:
    stopped, samples = stopped_after(bench, cases, 2)
    engine = bench.engine(kernel="[fg]*", resumed=Resumed(stopped, samples))
    engine.run(cases)
    assert {sample.case for sample in engine.samples} == {case.key for case in cases}


@pytest.mark.usefixtures("committed")
def test_a_run_with_a_precision_goes_on_with_the_case_that_it_was_stopped_in(bench: Bench, cases: list[Case]) -> None:
    plan = msgspec.structs.replace(PLAN, precision=0.002)
    stopped = bench.engine(kernel="good", plan=plan)

    def interrupt(worker: FakeWorker) -> None:
        if worker.timed[1:]:
            raise KeyboardInterrupt

    bench.pool.prepare = lambda worker, number: setattr(worker, "before_each", lambda: interrupt(worker))
    with pytest.raises(KeyboardInterrupt):
        stopped.run(cases)
    bench.pool.prepare = lambda worker, number: None
    engine = bench.engine(kernel="good", plan=plan, resumed=Resumed(stopped.record(), stopped.samples))
    engine.run(cases)
    run = engine.record()
    assert run.complete
    assert by_kernel(run, "first") == by_kernel(stopped.record(), "first")
    assert {result.measurement.processes for result in run.results if result.measurement is not None} == {LOOKS[0]}
    assert {(sample.case, sample.process) for sample in engine.samples} == {
        (case.key, number) for case in cases for number in range(LOOKS[0])
    }
    assert [task.case.name for task in bench.pool.started[-1].tasks] == ["second", "third"]
    with pytest.raises(UsageError, match="sampling plan"):
        bench.run(cases, kernel="good", resumed=Resumed(stopped.record(), stopped.samples))


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"torch": "0.0"}, "torch 0.0 -> "),
        ({"ptxas": "1"}, "ptxas 1 -> "),
        ({"ptxas_blackwell": "1"}, "ptxas_blackwell 1 -> "),
        ({"git_commit": "other"}, "git_commit other -> "),
        ({"device_uuid": "x"}, "device_uuid x -> "),
    ],
)
def test_a_run_of_other_things_is_not_gone_on_with(bench: Bench, cases: list[Case], change: dict[str, str], named: str) -> None:
    stopped, samples = stopped_after(bench, cases, 1)
    other = msgspec.structs.replace(stopped, environment=msgspec.structs.replace(stopped.environment, **change))
    with pytest.raises(UsageError, match=named):
        bench.run(cases, resumed=Resumed(other, samples))
    assert not bench.worker.tasks


@pytest.fixture
def on_board(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`on_board(uuid)`: runs from here on are on this GPU."""
    on_this_machine = context.environment_of

    def choose(board: str) -> None:
        def found(*given: Any) -> Environment:
            return msgspec.structs.replace(on_this_machine(*given), device="cuda", device_uuid=board)

        monkeypatch.setattr(context, "environment_of", found)

    return choose


@pytest.mark.usefixtures("committed")
def test_a_run_goes_on_on_other_boards_of_the_model_and_every_case_names_its_own(
    bench: Bench, cases: list[Case], on_board: Callable[[str], None]
) -> None:
    """A lent GPU is seldom the same one again."""
    on_board("GPU-a")
    first, samples = stopped_after(bench, cases, 1)
    assert [summary.board for summary in first.cases] == [""], "the environment names the one board"
    on_board("GPU-b")
    engine = bench.engine(kernel="[fg]*", resumed=Resumed(first, samples))
    engine.run(cases[:2])
    second = msgspec.structs.replace(engine.record(), complete=False)
    assert second.environment.device_uuid == "GPU-a,GPU-b"
    on_board("GPU-c")
    third = bench.run(cases, kernel="[fg]*", resumed=Resumed(second, engine.samples))
    assert third.environment.device_uuid == "GPU-a,GPU-b,GPU-c"
    assert [summary.board for summary in third.cases] == ["GPU-a", "GPU-b", "GPU-c"]


@pytest.mark.usefixtures("committed")
def test_a_suspect_of_another_board_is_remeasured_on_this_one_which_the_record_then_names(
    bench: Bench, cases: list[Case], on_board: Callable[[str], None]
) -> None:
    on_board("GPU-a")
    first, samples = stopped_after(bench, cases, 1)
    on_board("GPU-b")
    asked = Suspect(case=cases[0].key, reason="planted")
    run = bench.run(cases, kernel="[fg]*", suspects=lambda run: [asked], resumed=Resumed(first, samples))
    assert {summary.case.name: summary.board for summary in run.cases} == {"first": "GPU-b", "second": "GPU-b", "third": "GPU-b"}


@pytest.mark.usefixtures("committed")
def test_a_case_whose_parameters_or_kernels_changed_is_measured_again(bench: Bench, cases: list[Case]) -> None:
    stopped, samples = stopped_after(bench, cases, 2)
    changed = [msgspec.structs.replace(cases[0], params={"size": 8192}), *cases[1:]]
    bench.run(changed, kernel="[fg]*", resumed=Resumed(stopped, samples))
    assert [task.case.name for task in bench.worker.tasks if isinstance(task, TimeTask)] == ["first", "third"]
    bench.worker.tasks.clear()
    bench.run(cases, kernel="fast", resumed=Resumed(stopped, samples))
    assert len(bench.worker.timed) == 3


@pytest.mark.usefixtures("committed")
def test_the_record_says_which_cases_the_last_command_asked_for(bench: Bench, cases: list[Case]) -> None:
    stopped, samples = stopped_after(bench, cases, 1)
    part = bench.run(cases[:1], kernel="[fg]*", case="first", resumed=Resumed(stopped, samples))
    assert not bench.worker.tasks
    assert (part.selected_cases, part.selected_kernels, len(part.cases)) == ("first", "[fg]*", 1)
    whole = bench.run(cases, kernel="[fg]*", resumed=Resumed(msgspec.structs.replace(part, complete=False), samples))
    assert (whole.selected_cases, len(whole.cases), len(bench.worker.timed)) == (None, 3, 2)


def test_a_complete_run_without_a_suspect_is_not_gone_on_with(bench: Bench, case: Case) -> None:
    with pytest.raises(UsageError, match="is complete, and no suspect of it is left"):
        Resumed(bench.run([case], kernel="good"), []).require_unfinished(None, MarginRule())
