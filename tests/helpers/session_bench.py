"""A run over fakes: its engine, strategy, worker pool and monitor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.device import Device
from fusebench.registry import Collection
from fusebench.runner.context import MeasuringContext
from fusebench.runner.engine import Engine
from fusebench.runner.run.options import RunOptions
from fusebench.runner.run.reckoning import Reckoning
from fusebench.runner.run.strategy import RunStrategy
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.protocol import Checked, CheckTask, Failure, Measured, Progress, TimeTask
from fusebench.schema import Accuracy, CacheState, Case, Result, Run, Sample, SamplingPlan, Spending
from fusebench.store.calibration_note import with_calibration
from fusebench.verdict.baseline.compare_to_baseline import Suspect, judge_run, with_verdicts
from fusebench.verdict.margins.rule import MarginRule
from fusebench.verdict.record_validation import load_valid_baseline

PLAN = SamplingPlan(replicates=2, rounds=2, cache=CacheState.WARM, trim=0.0)
SPLIT, GOOD, FAST, WRONG = "scale/split@1", "scale/good@1", "scale/fast@2", "scale/wrong@1"
TIMES_US = {"copy": 1.0, "stream": 0.9, "control": 4.0, SPLIT: 4.0, GOOD: 2.0}
ANY = "[gw]*"
"""Kernels good and wrong, and the baseline, which is always there."""


def accuracy(passed: bool = True) -> Accuracy:
    return Accuracy(
        passed=passed, contract="close(1.5x split)", rms_error=0.0, max_error=0.0, mean_error=0.0, split_rms_error=0.0,
        split_max_error=0.0, equal_to_split=1.0, within_loose_tolerance=True, draws=1, elements=1, seed=1,
        reason="" if passed else "off by half",
    )  # fmt: skip


def sample(case: str, arm: str, replicate: int, number: int) -> Sample:
    span_ns = round(1000 * TIMES_US.get(arm, 3.0))
    return Sample(case=case, arm=arm, replicate=replicate, round=number, position=0, span_ns=span_ns, busy_ns=500, kernels=1)


def measured(task: TimeTask, **changes: Any) -> Measured:
    samples = [
        sample(task.case.key, arm, replicate, number)
        for arm in ("copy", "stream", "control", *task.kernels)
        for replicate in range(PLAN.replicates)
        for number in range(PLAN.rounds)
    ]
    known: dict[str, Any] = {
        "samples": samples, "host_us": {}, "extra_memory_bytes": {}, "timer": "host", "timer_fallback": "", "warm_up": {},
        "seconds": 1.0, "cut_short": False, "timer_retries": 0,
        "phases_s": {"timed rounds": 3.0, "first calls": 2.0}, "first_call_s": dict.fromkeys(("copy", *task.kernels), 0.5),
    }  # fmt: skip
    return Measured(**(known | changes))


class FakeWorker:
    """Passes every kernel but `wrong` and those in `failures`; answers the n-th measurement with `replies[n]`, then with times."""

    silence_s = 60.0

    def called_before(self, kernel: str) -> tuple[str, ...]:
        return ()

    def renew(self) -> None: ...

    def __init__(self) -> None:
        self.tasks: list[CheckTask | TimeTask] = []
        self.failures: dict[str, Failure | Checked] = {}
        self.replies: list[Callable[[TimeTask], Measured | Failure]] = []
        self.before_each: Callable[[], None] = lambda: None
        self.dismissed = False

    def ask(self, task: CheckTask | TimeTask, on_progress: Callable[[Progress], None]) -> Checked | Measured | Failure:
        self.tasks.append(task)
        self.before_each()
        if isinstance(task, TimeTask):
            on_progress(Progress(text="measure", done=1, total=2))
            return self.replies.pop(0)(task) if self.replies else measured(task)
        return self.failures.get(task.kernel) or Checked(accuracy=accuracy(task.kernel != WRONG))

    def start(self) -> None: ...

    def until_ready(self) -> None: ...

    def stop(self) -> None: ...

    def dismiss(self) -> None:
        self.dismissed = True

    def interrupt(self) -> None: ...

    @property
    def timed(self) -> list[tuple[str, ...]]:
        return [task.kernels for task in self.tasks if isinstance(task, TimeTask)]


class FakePool(WorkerPool):
    """One worker for checks and first measurements; `started` gets the fresh ones, `alive` says how many of them live."""

    def __init__(self, device: Device, roots: Sequence[Path], worker: FakeWorker) -> None:
        super().__init__(device, roots, timer="auto")
        self.native = self.interpreter = worker  # type: ignore[assignment]
        self.started: list[FakeWorker] = []
        self.alive = 0
        self.prepare: Callable[[FakeWorker, int], None] = lambda worker, number: None
        """Called with each fresh worker and the number of its process."""

    def _new(self, count: int) -> list[Any]:
        made = [FakeWorker() for _ in range(count)]
        for number, worker in enumerate(made, start=len(self.started) + 1):
            self.prepare(worker, number)
        self.started += made
        self.alive += len(made)
        return made

    def dismiss_fresh(self) -> None:
        super().dismiss_fresh()
        self.alive = 0


class FakeMonitor:
    """Reports what `touched` holds, one entry per measurement, then nothing."""

    def __init__(self) -> None:
        self.touched: list[list[str]] = []

    def __enter__(self) -> FakeMonitor:
        return self

    def __exit__(self, *_: object) -> None: ...

    def intrusions_since(self, monotonic_time: float) -> list[str]:
        return self.touched.pop(0) if self.touched else []

    def summary(self) -> dict[str, Any]:
        return {"samples": 0}


class PlantedSuspects(RunStrategy):
    """A run whose suspects the test names."""

    planted: Callable[[Run], Sequence[Suspect]] = staticmethod(lambda run: ())

    def suspects(self) -> Sequence[Suspect]:
        return self.planted(self.record(complete=False))


class Bench:
    """A run over fakes."""

    def __init__(self, collection: Collection, device: Device, folder: Path, reporter: Any) -> None:
        self.collection, self.device, self.folder, self.reporter = collection, device, folder, reporter
        self.worker, self.monitor = FakeWorker(), FakeMonitor()
        self.pool = FakePool(device, collection.roots, self.worker)

    def context(self, plan: SamplingPlan = PLAN, spent: Spending | None = None) -> MeasuringContext:
        made = MeasuringContext(self.device, self.folder, self.reporter, pool=self.pool, plan=plan, spent=spent)
        made.monitor = self.monitor  # type: ignore[assignment]
        return made

    def engine(
        self,
        *,
        plan: SamplingPlan = PLAN,
        budget_s: float | None = None,
        suspects: Callable[[Run], Sequence[Suspect]] = lambda run: (),
        reckoning: Reckoning | None = None,
        **options: Any,
    ) -> Engine[Case, Any, Any, Run]:
        """`suspects`: which cases of the measured run are remeasured."""
        resumed = options.get("resumed")
        context = self.context(plan, resumed.run.spending if resumed is not None else None)
        chosen = RunOptions(**({"kernel": ANY} | options))
        strategy = PlantedSuspects(context, self.collection, chosen, rule=MarginRule(), reckoning=reckoning)
        strategy.planted = suspects
        return Engine(strategy, budget_s)

    def run(self, cases: Sequence[Case], **options: Any) -> Run:
        engine = self.engine(**options)
        engine.run(cases)
        return engine.record()

    def judge(self, run: Run) -> Run:
        folder = self.folder / "results"
        run = with_calibration(run, folder)
        return with_verdicts(run, judge_run(run, load_valid_baseline(folder, run.environment.device_name), MarginRule()))


@pytest.fixture
def bench(collection: Collection, cpu: Device, tmp_path: Path, reporter: Any) -> Bench:
    return Bench(collection, cpu, tmp_path, reporter)


@pytest.fixture
def cases(case: Case) -> list[Case]:
    """Three cases of different work: the same work is measured once."""
    sizes = {"first": 4096, "second": 5120, "third": 6144}
    return [msgspec.structs.replace(case, name=name, params={"size": size}) for name, size in sizes.items()]


def by_kernel(run: Run, case: str = "even") -> dict[str, Result]:
    return {result.kernel: result for result in run.results if result.case == case}
