"""What a calibration plants: what was meant, where rows can do that, and nothing but a warning where they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.cli.calibrate_command import CPU_SLOWDOWNS, GPU_SLOWDOWNS
from fusebench.device import Device, environment_of
from fusebench.runner.calibrate.pilots import FIT
from fusebench.runner.calibrate.strategy import Found
from fusebench.runner.calibrate.summary import record_of
from fusebench.schema import Injection
from helpers.calibration_bench import ELEMENTS, FakePool, FakeWorker, calibrate, found_on, in_waves, of, options, target


def test_planting_slows_time_by_what_was_meant_although_rows_cost_half(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter)
    assert {truth.place.injection for truth in found.ground_truths} == {Injection.ROWS, Injection.DELAY}
    for truth in found.ground_truths:
        assert truth.change.low <= 1 + truth.place.nominal * 1.35
        assert truth.change.value - 1 == pytest.approx(truth.place.nominal, abs=0.004)
        assert truth.replicates == 5 * 12


def injected_of(worker: FakeWorker, found: Found) -> dict[float, float]:
    """By intended slowdown that rows inject, the true slowdown by the worker's own reckoning."""
    (task, *_) = [task for task in worker.tasks if task.looks is not None and task.case.params["delay_ns"] == 0]
    usual = worker.time_ns(task.case.params)
    slowdowns = [worker.time_ns(arm.params) / usual - 1 for arm in task.arms if arm.params is not None]
    nominals = dict.fromkeys(one.place.nominal for one in found.trials if one.place.injection is Injection.ROWS)
    return dict(zip(nominals, slowdowns, strict=True))


def test_rows_plant_what_is_meant_where_time_goes_in_waves(cpu: Device, reporter: Any) -> None:
    """5 % more rows cross into a wave and take 2.2 % longer: in proportion to that, 0.5, 1 and 2 % would come out as about half."""
    native = FakeWorker(scatter=0.001, growth=in_waves)
    found = calibrate(cpu, reporter, native, fresh={"growth": in_waves}, slowdowns=GPU_SLOWDOWNS, passes=1)
    injected = injected_of(native, found)
    assert list(injected) == list(GPU_SLOWDOWNS)
    assert found.warnings == ()
    for wanted, slowdown in injected.items():
        assert wanted / FIT <= slowdown <= wanted * FIT


def test_a_wave_that_leaps_over_slowdowns_leaves_them_out_and_says_so(cpu: Device, reporter: Any) -> None:
    def one_wave(elements: int) -> float:
        return 1.0 if elements <= 1056 else 1.05

    native = FakeWorker(scatter=0.001, growth=one_wave)
    found = calibrate(cpu, reporter, native, fresh={"growth": one_wave}, slowdowns=GPU_SLOWDOWNS, passes=1)
    assert injected_of(native, found) == {0.05: pytest.approx(0.05)}
    assert [truth.place.nominal for truth in found.ground_truths if truth.place.injection is Injection.ROWS] == [0.05]
    assert len(found.warnings) == 3
    for warning, wanted in zip(found.warnings, ("0.5 %", "1.0 %", "2.0 %"), strict=True):
        assert f"on calibration:rows_1001 (rows): {wanted} slower is not injected by more elements: of 10 values from 1006" in warning


def test_rows_in_proportion_to_time_plant_exactly_what_is_meant(cpu: Device, reporter: Any) -> None:
    def in_proportion(elements: int) -> float:
        return elements / ELEMENTS

    native = FakeWorker(scatter=0.001, growth=in_proportion)
    found = calibrate(cpu, reporter, native, fresh={"growth": in_proportion}, slowdowns=GPU_SLOWDOWNS, passes=1)
    assert injected_of(native, found) == {wanted: pytest.approx(wanted, abs=0.0005) for wanted in GPU_SLOWDOWNS}


def test_the_slowdowns_of_a_cpu_are_reached(cpu: Device, reporter: Any) -> None:
    native = FakeWorker(scatter=0.03)
    found = calibrate(cpu, reporter, native, slowdowns=CPU_SLOWDOWNS, passes=1)
    assert injected_of(native, found) == {wanted: pytest.approx(wanted, abs=0.001) for wanted in CPU_SLOWDOWNS}


def test_a_subject_that_no_rows_slow_down_is_compared_with_itself_alone(cpu: Device, reporter: Any) -> None:
    native = FakeWorker(growth=lambda elements: 1.0)
    found = found_on(cpu, options(), reporter, [target()], FakePool(native))
    assert {one.place.nominal for one in found.trials} == {0.0}
    assert (len(found.trials), found.ground_truths, len(found.components), found.complete) == (2 * 4, (), 1, True)
    assert [warning.partition(": ")[2].partition(" is not injected")[0] for warning in found.warnings] == ["0.2 % slower", "2.0 % slower"]
    record = record_of(found, options(), environment_of(cpu, Path()))
    assert [(one.comparisons, one.smallest, one.largest_injected) for one in record.note.effects] == [(8, None, None)]
    assert set(found.warnings) <= set(record.warnings)


def test_rows_that_the_memory_does_not_hold_are_neither_tried_nor_injected(cpu: Device, reporter: Any) -> None:
    small = msgspec.structs.replace(cpu, memory_bytes=1000)
    native = FakeWorker()
    large = msgspec.structs.replace(target(), bytes=198)
    found = found_on(small, options(passes=1), reporter, [large], FakePool(native))
    most = max((arm.params or task.case.params)["elements"] for task in native.tasks for arm in task.arms)
    assert 1001 < most <= 1001 * (400 - 198) / 198
    assert not of(found, 0.02)
    assert any("2.0 % slower is not injected" in warning for warning in found.warnings)


def test_a_subject_that_refuses_more_rows_keeps_its_equal_arms(cpu: Device, reporter: Any) -> None:
    found = calibrate(cpu, reporter, FakeWorker(refuses_rows=True), fresh={"refuses_rows": True})
    rows = [trial for trial in found.trials if trial.place.case.startswith("calibration:rows")]
    assert {trial.place.nominal for trial in rows} == {0.0}
    assert len(rows) == 2 * 4
    assert any("frames must divide tokens" in warning for warning in found.warnings)
    assert any("is not injected by more elements: nothing larger could be measured" in warning for warning in found.warnings)
