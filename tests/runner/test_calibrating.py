"""Calibration over workers that no process stands behind: times follow from parameters, plus noise of known size."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.cli.calibrate_command import CPU_SLOWDOWNS, GPU_SLOWDOWNS
from fusebench.device import Device
from fusebench.errors import DeviceUnfitError, UsageError
from fusebench.runner import calibrating
from fusebench.runner.calibrating import Calibrating, Found
from fusebench.runner.calibration_summary import combined, summary_of
from fusebench.runner.calibration_visit import CalibrationOptions
from fusebench.runner.messages import Failure, Measured, MeasureTask
from fusebench.runner.pilots import FIT
from fusebench.runner.subjects import Subject
from fusebench.schema import CacheState, Case, Sample, SamplingPlan, Status, VerdictKind
from fusebench.stats.calibration import FEWEST_TRIALS
from fusebench.stats.planting import Planting
from fusebench.stats.sequential import Plan
from fusebench.store.calibration_note import load_note
from fusebench.store.calibrations import join_calibration, load_calibration
from fusebench.timing.coldness import Coldness
from fusebench.timing.lengths import Lengths
from fusebench.timing.pairs import Judge

ROUNDS = 4
ELEMENTS = 1001
"""Odd, so that they are raised one by one."""


def half_of_the_work(elements: int) -> float:
    """Share of the time of `ELEMENTS` where half of it goes with them."""
    return 1 + 0.5 * (elements / ELEMENTS - 1)


def in_waves(elements: int) -> float:
    """A quarter of the time goes with the elements, and each wave of 150 beyond the seven of `ELEMENTS` adds 1 %."""
    return 1 + 0.25 * (elements / ELEMENTS - 1) + 0.01 * (math.ceil(elements / 150) - 7)


class FakeWorker:
    """Answers a task as a device would on which a call takes 12 us for 1001 elements, and where waiting is a launch of its own."""

    def __init__(
        self,
        scatter: float = 0.004,
        shift: float = 0.0,
        *,
        seed: int = 1,
        failing: str = "",
        warm: str = "",
        sees_launches: bool = True,
        refuses_rows: bool = False,
        growth: Callable[[int], float] = half_of_the_work,
        before_asked: Callable[[MeasureTask], None] = lambda task: None,
    ) -> None:
        """`failing` and `warm` are in the names of cases that crash, and of cases whose arms of usual size outrun the memory."""
        self.scatter, self.shift, self.failing, self.warm, self.before_asked = scatter, shift, failing, warm, before_asked
        self.sees_launches, self.growth = sees_launches, growth
        self.refuses_rows = refuses_rows
        self.random = random.Random(seed)
        self.tasks: list[MeasureTask] = []

    def time_ns(self, params: dict[str, Any]) -> float:
        return 12_000 * self.growth(params["elements"]) + params.get("delay_ns", 0)

    def launches(self, params: dict[str, Any]) -> int:
        if not self.sees_launches:
            return 0
        return 2 if params.get("delay_ns", 0) > 0 else 1

    def ask(self, task: MeasureTask, on_progress: Any) -> Measured | Failure:
        self.before_asked(task)
        self.tasks.append(task)
        if self.failing and self.failing in task.case.name:
            return Failure(status=Status.CRASHED, reason="planted")
        if self.refuses_rows and any(arm.params is not None for arm in task.extra_arms):
            return Failure(status=Status.CRASHED, reason="frames must divide tokens")
        judge = Judge(task.pairs, task.looks, task.plan.trim) if task.looks is not None else None
        lengths = Lengths(task.pairs, task.lengths) if task.lengths is not None else None
        ending = judge or lengths
        samples: list[Sample] = []
        for replicate in range(ending.replicates if ending else task.plan.replicates):
            idle = lengths.idle_arms() if lengths is not None else set()
            taken = [sample for sample in self.replicate(task, replicate) if sample.arm not in idle]
            samples += taken
            if lengths is not None:
                lengths.add(taken)
            if judge is not None:
                judge.add(taken)
                if not judge.open:
                    break
        return Measured(
            samples=samples, host_us={}, extra_memory_bytes={}, timer="host", timer_fallback="", warm_up={}, seconds=1.0, cut_short=False,
            retried_replicates=0, compared=judge.compared() if judge else {},
            minimum_bytes={arm.name: 8 * (arm.params or task.case.params)["elements"] for arm in task.extra_arms},
            coldness=Coldness(touched_us=1.0, emptied_us=2.0, memory_gb_per_s=0.1 if self.warm and self.warm in task.case.name else 4.0),
        )  # fmt: skip

    def replicate(self, task: MeasureTask, number: int) -> list[Sample]:
        samples = []
        for position, arm in enumerate(task.extra_arms):
            luck = self.random.gauss(0.0, self.scatter) + (self.shift if arm.name.endswith(": new") else 0.0)
            params = arm.params or task.case.params
            time = self.time_ns(params) * math.exp(luck)
            samples += [
                Sample(
                    case=task.case.key, arm=arm.name, replicate=number, round=each, position=position, kernels=self.launches(params),
                    span_ns=(span := round(time * math.exp(self.random.gauss(0.0, 0.002)))), busy_ns=span,
                )
                for each in range(ROUNDS)
            ]  # fmt: skip
        return samples


class FakeWorkers:
    """`native`, and as many fresh workers as are asked for, made with the same `fresh` and seeds of their own."""

    def __init__(self, native: FakeWorker, **fresh: Any) -> None:
        self.native, self._fresh = native, fresh
        self.started: list[FakeWorker] = []

    @contextmanager
    def fresh(self, count: int) -> Iterator[list[FakeWorker]]:
        self.started = [FakeWorker(seed=100 + number, **self._fresh) for number in range(count)]
        yield self.started


def subject(planting: Planting = Planting.ROWS) -> Subject:
    params = {"elements": ELEMENTS, "delay_ns": 0 if planting is Planting.ROWS else 2000}
    case = Case(suite="calibration", name=f"{planting}_{ELEMENTS}", op="planted", params=params)
    key = "elements" if planting is Planting.ROWS else "delay_ns"
    return Subject(case=case, kernel="planted/negate_and_wait@1", planting=planting, key=key)


def options(**changes: Any) -> CalibrationOptions:
    fields: dict[str, Any] = {
        "plan": SamplingPlan(replicates=12, rounds=ROUNDS, cache=CacheState.WARM, trim=0.1),
        "looks": Plan(),
        "slowdowns": (0.002, 0.02),
        "passes": 2,
        "identical": 4,
    }
    return CalibrationOptions(**(fields | changes))


def calibrate(
    cpu: Device, reporter: Any, native: FakeWorker | None = None, *, fresh: dict[str, Any] | None = None, **changes: Any
) -> Found:
    workers = FakeWorkers(native or FakeWorker(), **(fresh or {}))
    session = Calibrating(cpu, Path(), options(**changes), reporter)
    found = session.run([subject(Planting.ROWS), subject(Planting.DELAY)], workers)  # type: ignore[arg-type]
    assert len(workers.started) == 5, "five fresh processes serve all findings"
    return found


def of(found: Found, nominal: float) -> list[Any]:
    return [one for one in found.trials if one.place.nominal == nominal]


def test_equal_arms_pass_and_planted_ones_are_found(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter)
    assert len(of(found, 0.0)) == 2 * 2 * 4
    assert {one.verdict for one in of(found, 0.0)} <= {VerdictKind.PASS, VerdictKind.UNDECIDED}
    assert [one.verdict for one in of(found, 0.02)] == [VerdictKind.REGRESSION] * 4
    assert VerdictKind.REGRESSION not in {one.verdict for one in of(found, 0.002)}, "a fifth of a percent is inside the margin"
    assert found.complete


def test_calls_of_one_launch_and_of_two_are_claimed_apart(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter)
    assert {(one.place.case, one.launches) for one in found.trials} == {("calibration:rows_1001", 1), ("calibration:delay_1001", 2)}
    record = combined(found, options(), Calibrating(cpu, Path(), options(), reporter).environment, None)
    assert [one.name for one in summary_of(record).classes] == ["10 to 50 us", "10 to 50 us, several launches"]
    assert [(one.low_us, one.several_launches, one.comparisons) for one in record.note.effects] == [(10.0, False, 8), (10.0, True, 8)]


def test_a_timer_that_sees_no_launches_tells_no_calls_apart(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, FakeWorker(sees_launches=False))
    assert {one.launches for one in found.trials} == {0}
    record = combined(found, options(), Calibrating(cpu, Path(), options(), reporter).environment, None)
    assert [(one.several_launches, one.comparisons) for one in record.note.effects] == [(False, 16)]


def test_planting_slows_time_by_what_was_meant_although_rows_cost_half(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter)
    assert {truth.place.planting for truth in found.truths} == {Planting.ROWS, Planting.DELAY}
    for truth in found.truths:
        assert truth.change.low <= 1 + truth.place.nominal * 1.35
        assert truth.change.value - 1 == pytest.approx(truth.place.nominal, abs=0.004)
        assert truth.replicates == 5 * 12


def planted_of(worker: FakeWorker, found: Found) -> dict[float, float]:
    """By slowdown that was meant and planted by rows, what it truly is by the worker's own reckoning."""
    (task, *_) = [task for task in worker.tasks if task.looks is not None and task.case.params["delay_ns"] == 0]
    usual = worker.time_ns(task.case.params)
    slowdowns = [worker.time_ns(arm.params) / usual - 1 for arm in task.extra_arms if arm.params is not None]
    nominals = dict.fromkeys(one.place.nominal for one in found.trials if one.place.planting is Planting.ROWS)
    return dict(zip(nominals, slowdowns, strict=True))


def test_rows_plant_what_is_meant_where_time_goes_in_waves(cpu: Device, reporter: Any) -> None:
    """5 % more rows cross into a wave and take 2.2 % longer: in proportion to that, 0.5, 1 and 2 % would come out as about half."""
    native = FakeWorker(scatter=0.001, growth=in_waves)
    found = calibrate(cpu, reporter, native, fresh={"growth": in_waves}, slowdowns=GPU_SLOWDOWNS, passes=1)
    planted = planted_of(native, found)
    assert list(planted) == list(GPU_SLOWDOWNS)
    assert found.warnings == ()
    for wanted, slowdown in planted.items():
        assert wanted / FIT <= slowdown <= wanted * FIT


def test_a_wave_that_leaps_over_slowdowns_leaves_them_out_and_says_so(cpu: Device, reporter: Any) -> None:
    def one_wave(elements: int) -> float:
        return 1.0 if elements <= 1056 else 1.05

    native = FakeWorker(scatter=0.001, growth=one_wave)
    found = calibrate(cpu, reporter, native, fresh={"growth": one_wave}, slowdowns=GPU_SLOWDOWNS, passes=1)
    assert planted_of(native, found) == {0.05: pytest.approx(0.05)}
    assert [truth.place.nominal for truth in found.truths if truth.place.planting is Planting.ROWS] == [0.05]
    assert len(found.warnings) == 3
    for warning, wanted in zip(found.warnings, ("0.5%", "1.0%", "2.0%"), strict=True):
        assert f"on calibration:rows_1001 (rows): {wanted} slower is not planted by more elements: of 10 values from 1006" in warning


def test_rows_in_proportion_to_time_plant_exactly_what_is_meant(cpu: Device, reporter: Any) -> None:
    def in_proportion(elements: int) -> float:
        return elements / ELEMENTS

    native = FakeWorker(scatter=0.001, growth=in_proportion)
    found = calibrate(cpu, reporter, native, fresh={"growth": in_proportion}, slowdowns=GPU_SLOWDOWNS, passes=1)
    assert planted_of(native, found) == {wanted: pytest.approx(wanted, abs=0.0005) for wanted in GPU_SLOWDOWNS}


def test_the_slowdowns_of_a_cpu_are_reached(cpu: Device, reporter: Any) -> None:
    native = FakeWorker(scatter=0.03)
    found = calibrate(cpu, reporter, native, slowdowns=CPU_SLOWDOWNS, passes=1)
    assert planted_of(native, found) == {wanted: pytest.approx(wanted, abs=0.001) for wanted in CPU_SLOWDOWNS}


def test_a_subject_that_no_rows_slow_down_is_compared_with_itself_alone(cpu: Device, reporter: Any) -> None:
    native = FakeWorker(growth=lambda elements: 1.0)
    found = Calibrating(cpu, Path(), options(), reporter).run([subject()], FakeWorkers(native))  # type: ignore[arg-type]
    assert {one.place.nominal for one in found.trials} == {0.0}
    assert (len(found.trials), found.truths, len(found.components), found.complete) == (2 * 4, (), 1, True)
    assert [warning.partition(": ")[2].partition(" is not planted")[0] for warning in found.warnings] == ["0.2% slower", "2.0% slower"]
    record = combined(found, options(), Calibrating(cpu, Path(), options(), reporter).environment, None)
    assert [(one.comparisons, one.smallest, one.largest_planted) for one in record.note.effects] == [(8, None, None)]
    assert set(found.warnings) <= set(record.warnings)


def test_a_fresh_process_is_asked_once_for_a_subjects_claims_and_truths_each_of_its_own_length(cpu: Device, reporter: Any) -> None:
    workers = FakeWorkers(FakeWorker())
    found = Calibrating(cpu, Path(), options(identical=1, passes=1), reporter).run([subject()], workers)  # type: ignore[arg-type]
    claimed = [one for one in found.trials if one.first is VerdictKind.REGRESSION]
    assert claimed
    for worker in workers.started:
        (task,) = worker.tasks
        assert task.lengths is not None
        truths = 1 + len(options().slowdowns)
        assert sorted(task.lengths.values()) == sorted([12] * truths + [max(12, one.replicates) for one in claimed])


def test_a_process_that_deceives_the_first_stage_is_no_false_alarm(cpu: Device, reporter: Any) -> None:
    """Every new arm of the first process is 1 % slower, of whatever kernel: five fresh processes do not see it."""
    found = calibrate(cpu, reporter, FakeWorker(shift=0.01))
    equal = of(found, 0.0)
    assert {one.first for one in equal} == {VerdictKind.REGRESSION}
    assert VerdictKind.REGRESSION not in {one.verdict for one in equal}


def test_a_pipeline_that_cries_wolf_is_found_out(cpu: Device, reporter: Any) -> None:
    """The planted defect of the figure itself: equal arms of which the new one is always slower, in every process."""
    found = calibrate(cpu, reporter, FakeWorker(shift=0.02), fresh={"shift": 0.02})
    record = combined(found, options(), Calibrating(cpu, Path(), options(), reporter).environment, None)
    assert record.note.false_regressions == record.note.comparisons == 16
    assert record.note.false_regression_high == 1.0


def test_the_components_of_variance_are_those_of_the_noise(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter)
    assert len(found.components) == 2
    for one in found.components:
        assert one.components.rounds == pytest.approx(0.002 * math.sqrt(2), rel=0.35)
        assert one.components.placements == pytest.approx(0.004 * math.sqrt(2), rel=0.45)


def test_a_subject_that_fails_is_left_out_and_named(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, FakeWorker(failing="delay"))
    assert {one.place.case for one in found.trials} == {"calibration:rows_1001"}
    assert any("delay_1001 (delay) is left out where it failed: planted" in warning for warning in found.warnings)


def test_a_subject_whose_times_the_memory_contradicts_is_left_out_and_named(cpu: Device, reporter: Any) -> None:
    """Planted: 8008 bytes in 12 us, which is 0.7 GB/s, where the memory moves 0.1."""
    found = calibrate(cpu, reporter, FakeWorker(warm="delay"))
    assert {one.place.case for one in found.trials} == {"calibration:rows_1001"}
    assert any("delay_1001 (delay) is left out where its times are labelled cold and are not" in warning for warning in found.warnings)


def test_a_finding_that_a_fresh_process_could_not_repeat_is_undecided(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, fresh={"failing": "rows"})
    by_case = {one.place.case: one.verdict for one in of(found, 0.02)}
    assert by_case == {"calibration:rows_1001": VerdictKind.UNDECIDED, "calibration:delay_1001": VerdictKind.REGRESSION}


def test_where_nothing_can_be_measured_it_says_so(cpu: Device, reporter: Any) -> None:
    workers: Any = FakeWorkers(FakeWorker(failing="_"))
    with pytest.raises(DeviceUnfitError, match=r"no subject was measured .* planted"):
        Calibrating(cpu, Path(), options(), reporter).run([subject()], workers)


def test_a_budget_keeps_the_visits_that_were_over(cpu: Device, reporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement takes a second: two pilots, then visits of six, a measurement and five fresh ones."""
    clock = itertools.count(1)
    now = [0.0]

    def second(_: MeasureTask) -> None:
        now[0] = float(next(clock))

    monkeypatch.setattr(calibrating, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found = calibrate(cpu, reporter, FakeWorker(before_asked=second), fresh={"before_asked": second}, passes=50, budget_s=10.0)
    assert not found.complete
    assert {one.place.planting for one in found.trials} == {Planting.IDENTICAL, Planting.ROWS}, "the second subject was not reached"
    assert len(of(found, 0.0)) == 4
    assert [one.verdict for one in of(found, 0.02)] == [VerdictKind.REGRESSION]
    assert any("ended after 1 of 100 visits" in warning for warning in found.warnings)


def test_an_interruption_keeps_the_visits_that_were_over(cpu: Device, reporter: Any) -> None:
    def interrupted(task: MeasureTask) -> None:
        if task.case.name.startswith("delay"):
            raise KeyboardInterrupt

    found = calibrate(cpu, reporter, fresh={"before_asked": interrupted})
    assert not found.complete
    assert {truth.place.planting for truth in found.truths} == {Planting.ROWS}
    assert len(of(found, 0.0)) == 4, "equal kernels of a visit that was not confirmed count for nothing"


def test_an_interruption_before_the_first_visit_is_over_interrupts(cpu: Device, reporter: Any) -> None:
    def interrupted(task: MeasureTask) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(cpu, reporter, fresh={"before_asked": interrupted})


def test_a_budget_that_confirms_nothing_is_no_calibration(cpu: Device, reporter: Any) -> None:
    with pytest.raises(DeviceUnfitError, match="raise --budget"):
        calibrate(cpu, reporter, budget_s=1e-6)


def test_a_measurement_holds_no_more_arms_than_the_memory(cpu: Device, reporter: Any) -> None:
    small = msgspec.structs.replace(cpu, memory_bytes=1000)
    native = FakeWorker()
    large = msgspec.structs.replace(subject(), bytes=60)
    found = Calibrating(small, Path(), options(passes=1, planted=2), reporter).run([large], FakeWorkers(native))  # type: ignore[arg-type]
    sizes = [len(task.pairs) for task in native.tasks if task.looks is not None]
    assert sizes == [3, 3, 2], "40 % of 1000 bytes hold three pairs of two arms with 60 bytes each"
    assert [len(task.pairs) for task in native.tasks if task.looks is None] == [3, 3, 3], "the pilot likewise: equal arms and eight raised"
    assert len(of(found, 0.0)) == 4
    assert len(of(found, 0.02)) == 2


def test_rows_that_the_memory_does_not_hold_are_neither_tried_nor_planted(cpu: Device, reporter: Any) -> None:
    small = msgspec.structs.replace(cpu, memory_bytes=1000)
    native = FakeWorker()
    large = msgspec.structs.replace(subject(), bytes=198)
    found = Calibrating(small, Path(), options(passes=1), reporter).run([large], FakeWorkers(native))  # type: ignore[arg-type]
    most = max((arm.params or task.case.params)["elements"] for task in native.tasks for arm in task.extra_arms)
    assert 1001 < most <= 1001 * (400 - 198) / 198
    assert not of(found, 0.02)
    assert any("2.0% slower is not planted" in warning for warning in found.warnings)


def test_a_subject_that_refuses_more_rows_keeps_its_equal_arms(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, FakeWorker(refuses_rows=True), fresh={"refuses_rows": True})
    rows = [trial for trial in found.trials if trial.place.case.startswith("calibration:rows")]
    assert {trial.place.nominal for trial in rows} == {0.0}
    assert len(rows) == 2 * 4
    assert any("frames must divide tokens" in warning for warning in found.warnings)
    assert any("is not planted by more elements: nothing larger could be measured" in warning for warning in found.warnings)


def test_several_pairs_of_each_slowdown_are_measured_where_asked_for(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, planted=3, passes=1)
    assert [one.verdict for one in of(found, 0.02)] == [VerdictKind.REGRESSION] * 2 * 3


def test_the_record_is_read_back_and_more_is_added_to_it(cpu: Device, reporter: Any, tmp_path: Path) -> None:
    environment = Calibrating(cpu, Path(), options(), reporter).environment
    first = combined(calibrate(cpu, reporter), options(), environment, None)
    assert join_calibration(tmp_path, environment.device_name, lambda _: first)[0] == first
    stored = load_calibration(tmp_path, environment.device_name)
    assert stored == first
    assert load_note(tmp_path, environment.device_name) == first.note
    both = combined(calibrate(cpu, reporter), options(), environment, stored)
    assert (both.note.comparisons, len(both.sessions)) == (2 * first.note.comparisons, 2)
    assert {truth.place.session for truth in both.truths} == {trial.place.session for trial in both.trials} == {0, 1}
    assert {one.session for one in both.components} == {0, 1}
    changed = options(plan=SamplingPlan(replicates=12, rounds=9, cache=CacheState.WARM, trim=0.1))
    again = calibrate(cpu, reporter)
    with pytest.raises(UsageError, match=r"made another way \(sampling: "):
        combined(again, changed, environment, stored)
    assert not stored.same_buffers, "warm"
    with pytest.raises(UsageError, match=r"arms of a pair: in the same buffers -> in buffers of their own"):
        combined(again, options(), environment, msgspec.structs.replace(stored, same_buffers=True))


def test_two_devices_calibrated_at_once_lose_neither(cpu: Device, reporter: Any, tmp_path: Path) -> None:
    environment = Calibrating(cpu, Path(), options(), reporter).environment
    started = threading.Barrier(2)

    def join(found: Found) -> None:
        started.wait()
        join_calibration(tmp_path, environment.device_name, lambda stored: combined(found, options(), environment, stored))

    both = [threading.Thread(target=join, args=(calibrate(cpu, reporter),)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    stored = load_calibration(tmp_path, environment.device_name)
    assert stored is not None
    assert len(stored.sessions) == 2


def test_a_size_that_was_tried_too_seldom_is_not_claimed(cpu: Device, reporter: Any) -> None:
    environment = Calibrating(cpu, Path(), options(), reporter).environment
    few = combined(calibrate(cpu, reporter), options(), environment, None)
    (found,) = summary_of(few).classes[0].found.values()
    assert 0 < found.count == found.total < FEWEST_TRIALS
    assert (few.note.effects[0].smallest, few.note.effects[0].largest_planted) == (None, None)
    # The same trials as often as it takes.
    repeated = msgspec.structs.replace(few, trials=few.trials * FEWEST_TRIALS)
    found = Found(
        trials=repeated.trials, truths=few.truths, components=(), warnings=(), timer="host", created="t", seconds=1.0, complete=True
    )
    assert combined(found, options(), environment, None).note.effects[0].smallest == pytest.approx(0.02, rel=0.1)
