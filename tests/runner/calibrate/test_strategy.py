"""A whole calibration: what it finds and claims, what it leaves out, how it ends early, and the record that more is added to."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.device import Device, environment_of
from fusebench.errors import DeviceUnfitError, UsageError
from fusebench.runner import engine as engine_module
from fusebench.runner.calibrate.joining import joined
from fusebench.runner.calibrate.strategy import Found
from fusebench.runner.calibrate.summary import record_of, summary_of
from fusebench.runner.workers.protocol import CalibrationTask
from fusebench.schema import CacheState, Injection, SamplingPlan, VerdictKind
from fusebench.store.calibration_note import load_note
from fusebench.store.calibrations import join_calibration, load_calibration
from fusebench.verdict.calibration import FEWEST_TRIALS
from helpers.calibration_bench import FakePool, FakeWorker, calibrate, found_on, of, options, target


def test_equal_arms_pass_and_injected_slowdowns_are_found(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter)
    assert len(of(found, 0.0)) == 2 * 2 * 4
    assert {one.verdict for one in of(found, 0.0)} <= {VerdictKind.PASS, VerdictKind.UNDECIDED}
    assert [one.verdict for one in of(found, 0.02)] == [VerdictKind.REGRESSION] * 4
    assert VerdictKind.REGRESSION not in {one.verdict for one in of(found, 0.002)}, "a fifth of a percent is inside the margin"
    assert found.complete


def test_calls_of_one_launch_and_of_two_are_claimed_apart(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter)
    assert {(one.place.case, one.launches) for one in found.trials} == {("calibration:rows_1001", 1), ("calibration:delay_1001", 2)}
    record = record_of(found, options(), environment_of(cpu, Path()))
    assert [one.name for one in summary_of(record).classes] == ["10 to 50 us", "10 to 50 us, several launches"]
    assert [(one.low_us, one.several_launches, one.comparisons) for one in record.note.effects] == [(10.0, False, 8), (10.0, True, 8)]


def test_a_timer_that_sees_no_launches_tells_no_calls_apart(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, FakeWorker(sees_launches=False))
    assert {one.launches for one in found.trials} == {0}
    record = record_of(found, options(), environment_of(cpu, Path()))
    assert [(one.several_launches, one.comparisons) for one in record.note.effects] == [(False, 16)]


def test_a_fresh_process_is_asked_once_for_a_subjects_claims_and_truths_each_of_its_own_length(cpu: Device, reporter: Any) -> None:
    pool = FakePool(FakeWorker())
    found = found_on(cpu, options(identical=1, passes=1), reporter, [target()], pool)
    claimed = [one for one in found.trials if one.first is VerdictKind.REGRESSION]
    assert claimed
    for worker in pool.started:
        (task,) = worker.tasks
        assert task.lengths is not None
        ground_truths = 1 + len(options().slowdowns)
        assert sorted(task.lengths.values()) == sorted([12] * ground_truths + [max(12, one.replicates) for one in claimed])


def test_a_process_that_deceives_the_first_stage_is_no_false_alarm(cpu: Device, reporter: Any) -> None:
    """Every new arm of the first process is 1 % slower, of whatever kernel: five fresh processes do not see it."""
    found = calibrate(cpu, reporter, FakeWorker(shift=0.01))
    equal = of(found, 0.0)
    assert {one.first for one in equal} == {VerdictKind.REGRESSION}
    assert VerdictKind.REGRESSION not in {one.verdict for one in equal}


def test_a_pipeline_that_cries_wolf_is_found_out(cpu: Device, reporter: Any) -> None:
    """The planted defect of the figure itself: equal arms of which the new one is always slower, in every process."""
    found = calibrate(cpu, reporter, FakeWorker(shift=0.02), fresh={"shift": 0.02})
    record = record_of(found, options(), environment_of(cpu, Path()))
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
    with pytest.raises(DeviceUnfitError, match=r"no target was measured .* planted"):
        found_on(cpu, options(), reporter, [target()], FakePool(FakeWorker(failing="_")))


def test_a_budget_keeps_the_visits_that_were_over(cpu: Device, reporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement takes a second: two pilots, then visits of six, a measurement and five fresh ones."""
    clock = itertools.count(1)
    now = [0.0]

    def second(_: CalibrationTask) -> None:
        now[0] = float(next(clock))

    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found = calibrate(cpu, reporter, FakeWorker(before_asked=second), fresh={"before_asked": second}, passes=50, budget_s=10.0)
    assert not found.complete
    assert {one.place.injection for one in found.trials} == {Injection.IDENTICAL, Injection.ROWS}, "the second target was not reached"
    assert len(of(found, 0.0)) == 4
    assert [one.verdict for one in of(found, 0.02)] == [VerdictKind.REGRESSION]
    assert any("ended after 1 of 100 visits" in warning for warning in found.warnings)


def test_an_interruption_keeps_the_visits_that_were_over(cpu: Device, reporter: Any) -> None:
    def interrupted(task: CalibrationTask) -> None:
        if task.case.name.startswith("delay"):
            raise KeyboardInterrupt

    found = calibrate(cpu, reporter, fresh={"before_asked": interrupted})
    assert not found.complete
    assert {truth.place.injection for truth in found.ground_truths} == {Injection.ROWS}
    assert len(of(found, 0.0)) == 4, "A/A pairs of an unconfirmed visit are not kept"


def test_a_device_that_proves_unfit_later_keeps_the_visits_that_were_over(cpu: Device, reporter: Any) -> None:
    def lost(task: CalibrationTask) -> None:
        if task.case.name.startswith("delay"):
            raise DeviceUnfitError("planted")

    found = calibrate(cpu, reporter, fresh={"before_asked": lost})
    assert (found.complete, found.unfit) == (False, "after 1 of 4 visits, which are kept: planted")
    assert found.warnings[-1] == f"the device proved unfit {found.unfit}"
    assert len(of(found, 0.0)) == 4


def test_a_device_that_is_unfit_from_the_first_visit_on_ends_the_calibration(cpu: Device, reporter: Any) -> None:
    def lost(task: CalibrationTask) -> None:
        raise DeviceUnfitError("planted")

    with pytest.raises(DeviceUnfitError, match="planted"):
        calibrate(cpu, reporter, fresh={"before_asked": lost})


def test_an_interruption_before_the_first_visit_is_over_interrupts(cpu: Device, reporter: Any) -> None:
    def interrupted(task: CalibrationTask) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(cpu, reporter, fresh={"before_asked": interrupted})


def test_a_budget_that_confirms_nothing_is_no_calibration(cpu: Device, reporter: Any) -> None:
    with pytest.raises(DeviceUnfitError, match="raise --budget"):
        calibrate(cpu, reporter, budget_s=1e-6)


def test_a_measurement_holds_no_more_arms_than_the_memory(cpu: Device, reporter: Any) -> None:
    small = msgspec.structs.replace(cpu, memory_bytes=1000)
    native = FakeWorker()
    large = msgspec.structs.replace(target(), bytes=60)
    found = found_on(small, options(passes=1, injected=2), reporter, [large], FakePool(native))
    sizes = [len(task.pairs) for task in native.tasks if task.looks is not None]
    assert sizes == [3, 3, 2], "40 % of 1000 bytes hold three pairs of two arms with 60 bytes each"
    assert [len(task.pairs) for task in native.tasks if task.looks is None] == [3, 3, 3], "the pilot likewise: equal arms and eight raised"
    assert len(of(found, 0.0)) == 4
    assert len(of(found, 0.02)) == 2


def test_several_pairs_of_each_slowdown_are_measured_where_asked_for(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, injected=3, passes=1)
    assert [one.verdict for one in of(found, 0.02)] == [VerdictKind.REGRESSION] * 2 * 3


def test_the_record_is_read_back_and_more_is_added_to_it(cpu: Device, reporter: Any, tmp_path: Path) -> None:
    environment = environment_of(cpu, Path())
    first = record_of(calibrate(cpu, reporter), options(), environment)
    assert join_calibration(tmp_path, environment.device_name, lambda _: first)[0] == first
    stored = load_calibration(tmp_path, environment.device_name)
    assert stored == first
    assert load_note(tmp_path, environment.device_name) == first.note
    with pytest.raises(UsageError, match=r"holds the session of .* already"):
        joined(stored, first)
    with pytest.raises(UsageError, match="a calibration of Toy CPU does not belong with one of Another CPU"):
        joined(msgspec.structs.replace(stored, environment=msgspec.structs.replace(environment, device_name="Another CPU")), first)
    later = msgspec.structs.replace(calibrate(cpu, reporter), created="2030-01-01T00:00:00+00:00")
    both = joined(stored, record_of(later, options(), environment))
    assert (both.note.comparisons, len(both.sessions)) == (2 * first.note.comparisons, 2)
    assert {truth.place.session for truth in both.ground_truths} == {trial.place.session for trial in both.trials} == {0, 1}
    assert {one.session for one in both.components} == {0, 1}
    changed = options(plan=SamplingPlan(replicates=12, rounds=9, cache=CacheState.WARM, trim=0.1))
    again = calibrate(cpu, reporter)
    with pytest.raises(UsageError, match=r"made another way \(sampling: "):
        joined(stored, record_of(again, changed, environment))
    assert not stored.same_buffers, "warm"
    with pytest.raises(UsageError, match=r"arms of a pair: in the same buffers -> in buffers of their own"):
        joined(msgspec.structs.replace(stored, same_buffers=True), record_of(again, options(), environment))


def test_two_devices_calibrated_at_once_lose_neither(cpu: Device, reporter: Any, tmp_path: Path) -> None:
    environment = environment_of(cpu, Path())
    started = threading.Barrier(2)

    def join(found: Found) -> None:
        started.wait()
        join_calibration(tmp_path, environment.device_name, lambda stored: joined(stored, record_of(found, options(), environment)))

    found = [msgspec.structs.replace(calibrate(cpu, reporter), created=f"2030-01-0{number}T00:00:00+00:00") for number in (1, 2)]
    both = [threading.Thread(target=join, args=(one,)) for one in found]
    for one in both:
        one.start()
    for one in both:
        one.join()
    stored = load_calibration(tmp_path, environment.device_name)
    assert stored is not None
    assert len(stored.sessions) == 2


def test_a_size_that_was_tried_too_seldom_is_not_claimed(cpu: Device, reporter: Any) -> None:
    environment = environment_of(cpu, Path())
    few = record_of(calibrate(cpu, reporter), options(), environment)
    (found,) = summary_of(few).classes[0].found.values()
    assert 0 < found.count == found.total < FEWEST_TRIALS
    assert (few.note.effects[0].smallest, few.note.effects[0].largest_injected) == (None, None)

    def of_cases(found: Iterable[Any]) -> tuple[Any, ...]:
        """The same of as many cases as it takes."""
        moved = [(one, msgspec.structs.replace(one.place, case=f"{one.place.case} {number}")) for one in found for number in range(60)]
        return tuple(msgspec.structs.replace(one, place=place) for one, place in moved)

    found = Found(
        trials=of_cases(few.trials),
        ground_truths=of_cases(few.ground_truths),
        components=(),
        warnings=(),
        timer="host",
        created="t",
        seconds=1.0,
        complete=True,
    )
    assert record_of(found, options(), environment).note.effects[0].smallest == pytest.approx(0.02, rel=0.1)


def test_without_pilots_ahead_each_comes_with_its_targets_first_visit_and_finds_the_same(cpu: Device, reporter: Any) -> None:
    ahead, lazy = (calibrate(cpu, reporter, pilots_ahead=pilots_ahead) for pilots_ahead in (True, False))
    assert Counter(one.place for one in lazy.trials) == Counter(one.place for one in ahead.trials)
    assert len(lazy.ground_truths) == len(ahead.ground_truths)
    assert lazy.complete


def test_without_pilots_ahead_no_other_target_is_touched_before_the_first_visit_is_over(cpu: Device, reporter: Any) -> None:
    def asked(pilots_ahead: bool) -> list[str]:
        names: list[str] = []

        class Recorded(FakeWorker):
            def ask(self, task: Any, on_progress: Any) -> Any:
                names.append(task.case.name)
                return super().ask(task, on_progress)

        calibrate(cpu, reporter, Recorded(), pilots_ahead=pilots_ahead)
        return names[:2]

    first, other = asked(True)
    assert (first != other, asked(False)) == (True, [first, first])
