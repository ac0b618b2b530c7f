"""Calibration over workers that no process stands behind: times follow from parameters, plus noise of known size.

For the tests of calibrations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fusebench.device import Device
from fusebench.runner.calibrate.strategy import CalibrationStrategy, Found
from fusebench.runner.calibrate.targets import CalibrationTarget
from fusebench.runner.calibrate.visit import CalibrationOptions
from fusebench.runner.context import MeasuringContext
from fusebench.runner.engine import Engine
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.protocol import CalibrationTask, Failure, Measured
from fusebench.schema import CacheState, Case, Injection, Sample, SamplingPlan, Status
from fusebench.stats.sequential import Plan
from fusebench.timing.coldness import Coldness
from fusebench.timing.pairs import Judge, Lengths

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
        before_asked: Callable[[CalibrationTask], None] = lambda task: None,
    ) -> None:
        """`failing` and `warm` are in the names of cases that crash, and of cases whose arms of usual size outrun the memory."""
        self.scatter, self.shift, self.failing, self.warm, self.before_asked = scatter, shift, failing, warm, before_asked
        self.sees_launches, self.growth = sees_launches, growth
        self.refuses_rows = refuses_rows
        self.random = random.Random(seed)
        self.tasks: list[CalibrationTask] = []

    def time_ns(self, params: dict[str, Any]) -> float:
        return 12_000 * self.growth(params["elements"]) + params.get("delay_ns", 0)

    def launches(self, params: dict[str, Any]) -> int:
        if not self.sees_launches:
            return 0
        return 2 if params.get("delay_ns", 0) > 0 else 1

    def ask(self, task: CalibrationTask, on_progress: Any) -> Measured | Failure:
        self.before_asked(task)
        self.tasks.append(task)
        if self.failing and self.failing in task.case.name:
            return Failure(status=Status.CRASHED, reason="planted")
        if self.refuses_rows and any(arm.params is not None for arm in task.arms):
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
            timer_retries=0, compared=judge.compared() if judge else {},
            memory_bytes={arm.name: 8 * (arm.params or task.case.params)["elements"] for arm in task.arms},
            coldness=Coldness(touched_us=1.0, emptied_us=2.0, memory_gb_per_s=0.1 if self.warm and self.warm in task.case.name else 4.0),
        )  # fmt: skip

    def start(self) -> None: ...

    def until_ready(self) -> None: ...

    def stop(self) -> None: ...

    def dismiss(self) -> None: ...

    def replicate(self, task: CalibrationTask, number: int) -> list[Sample]:
        samples = []
        for position, arm in enumerate(task.arms):
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


class FakePool(WorkerPool):
    """`native`, and as many fresh workers as are asked for, made with the same `fresh` and seeds of their own."""

    def __init__(self, native: FakeWorker, **fresh: Any) -> None:
        super().__init__(Device(kind="cpu", name="Toy CPU"), [], timer="auto")
        self.native, self._options = native, fresh  # type: ignore[assignment]
        self.started: list[FakeWorker] = []

    def _new(self, count: int) -> list[Any]:
        made = [FakeWorker(seed=100 + number, **self._options) for number in range(count)]
        self.started += made
        return made


def target(injection: Injection = Injection.ROWS) -> CalibrationTarget:
    params = {"elements": ELEMENTS, "delay_ns": 0 if injection is Injection.ROWS else 2000}
    case = Case(suite="calibration", name=f"{injection}_{ELEMENTS}", op="planted", params=params)
    key = "elements" if injection is Injection.ROWS else "delay_ns"
    return CalibrationTarget(case=case, kernel="planted/negate_and_wait@1", injection=injection, key=key)


def options(**changes: Any) -> CalibrationOptions:
    fields: dict[str, Any] = {
        "plan": SamplingPlan(replicates=12, rounds=ROUNDS, cache=CacheState.WARM, trim=0.1),
        "looks": Plan(),
        "slowdowns": (0.002, 0.02),
        "passes": 2,
        "identical": 4,
    }
    return CalibrationOptions(**(fields | changes))


def engine_of(
    device: Device, options: CalibrationOptions, reporter: Any, pool: WorkerPool, budget_s: float | None = None
) -> Engine[CalibrationTarget, Any, Any, Found]:
    context = MeasuringContext(device, Path(), reporter, pool=pool, plan=options.plan)
    return Engine(CalibrationStrategy(context, options), budget_s)


def found_on(device: Device, options: CalibrationOptions, reporter: Any, targets: Sequence[CalibrationTarget], pool: WorkerPool) -> Found:
    engine = engine_of(device, options, reporter, pool)
    engine.run(targets)
    return engine.record()


def calibrate(
    cpu: Device,
    reporter: Any,
    native: FakeWorker | None = None,
    *,
    fresh: dict[str, Any] | None = None,
    budget_s: float | None = None,
    **changes: Any,
) -> Found:
    pool = FakePool(native or FakeWorker(), **(fresh or {}))
    engine = engine_of(cpu, options(**changes), reporter, pool, budget_s)
    engine.run([target(Injection.ROWS), target(Injection.DELAY)])
    found = engine.record()
    assert len(pool.started) == 5, "five fresh processes serve all findings"
    return found


def of(found: Found, nominal: float) -> list[Any]:
    return [one for one in found.trials if one.place.nominal == nominal]
