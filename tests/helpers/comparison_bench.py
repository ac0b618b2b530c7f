"""A comparison over fakes, for the tests of comparisons."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.device import Device
from fusebench.registry import load_collection
from fusebench.runner.ab.revisions import Revisions
from fusebench.runner.ab.strategy import ComparisonOptions, ComparisonStrategy
from fusebench.runner.context import MeasuringContext
from fusebench.runner.engine import Engine
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.protocol import Checked, CheckTask, CompareTask, ConfirmTask, Failure, Measured
from fusebench.schema import Accuracy, CacheState, Case, Sample, SamplingPlan, Status
from fusebench.stats.sequential import Plan
from fusebench.store.comparison_record import BaseRevision, ComparedKernel, Comparison
from fusebench.timing.coldness import Coldness
from fusebench.timing.pairs import Judge, Lengths

PLAN = SamplingPlan(replicates=3, rounds=2, cache=CacheState.WARM, trim=0.0)
TIME_NS = 20_000
SCATTER = 0.002
A, B, SPLIT = "scale/a@1", "scale/b@1", "scale/split@1"


class FakeWorker:
    """Answers measurements with scattered times: every arm takes 20 us times `factors[arm]`, in fresh processes `fresh_factors[arm]`."""

    silence_s = 60.0

    def called_before(self, kernel: str) -> tuple[str, ...]:
        return ()

    def renew(self) -> None: ...

    def __init__(self) -> None:
        self.rng = random.Random(7)
        self.factors: dict[str, float] = {}
        self.fresh_factors: Callable[[int, str], float] = lambda process, arm: self.factors.get(arm, 1.0)
        self.same_code: dict[str, bool | None] = {}
        self.rms: dict[str, float] = {}
        self.warm: Callable[[CompareTask | ConfirmTask], bool] = lambda task: False
        """Whether a measurement's times are faster than the memory that it saw."""
        self.checks: list[CheckTask] = []
        self.first: list[CompareTask] = []
        self.fresh: list[ConfirmTask] = []
        self.before_measuring: Callable[[CompareTask], Failure | None] = lambda task: None
        self.said: dict[str, Any] = {}
        """Fields of the first process's answers."""
        self.before_confirming: Callable[[int], None] = lambda process: None
        self.fresh_fails = False
        self.failing: set[str] = set()

    def ask(self, task: Any, on_progress: Any) -> Any:
        if isinstance(task, CheckTask):
            self.checks.append(task)
            return self._checked(task)
        self.first.append(task)
        if failure := self.before_measuring(task):
            return failure
        return msgspec.structs.replace(self._measured(task, lambda arm: self.factors.get(arm, 1.0)), **self.said)

    def ask_fresh(self, task: ConfirmTask, process: int) -> Measured | Failure:
        self.fresh.append(task)
        self.before_confirming(process)
        if self.fresh_fails:
            return Failure(status=Status.CRASHED, reason="planted")
        return self._measured(task, lambda arm: self.fresh_factors(process, arm))

    def _checked(self, task: CheckTask) -> Checked:
        rms = self.rms.get(task.kernel, 1e-3)
        return Checked(
            accuracy=Accuracy(
                passed=task.kernel not in self.failing, contract="close(1.5x split)", rms_error=rms, max_error=rms, mean_error=0.0,
                split_rms_error=1e-3, split_max_error=1e-3, equal_to_split=0.0, within_loose_tolerance=True, draws=1, elements=10**9,
                seed=task.seed or 0, reason="off by half",
            )
        )  # fmt: skip

    def _measured(self, task: CompareTask | ConfirmTask, factor: Callable[[str], float]) -> Measured:
        known = {name: self.same_code.get(name) for name in (pair.name for pair in task.pairs)}
        judge = Judge(task.pairs, task.looks, task.plan.trim) if isinstance(task, CompareTask) else None
        if judge and isinstance(task, CompareTask) and task.skip_identical:
            judge.drop(name for name, same in known.items() if same and name not in task.sampled)
        samples: list[Sample] = []
        arms = ["copy", "stream", "control", *task.kernels, *(arm.name for arm in task.arms)]
        lengths = Lengths(task.pairs, task.lengths) if isinstance(task, ConfirmTask) else None
        ending = judge or lengths
        for number in range(ending.replicates if ending else task.plan.replicates):
            if judge and not judge.open:
                break
            idle = lengths.idle_arms() if lengths else set()
            taken = [
                sample
                for arm in arms
                if arm not in idle
                for sample in self._samples(task, number, arm, factor(task.baseline if arm == "control" else arm))
            ]
            if lengths:
                lengths.add(taken)
            samples += taken
            if judge:
                judge.add(taken)
        return Measured(
            samples=samples, host_us={}, extra_memory_bytes={}, timer="scripted", timer_fallback="", warm_up={}, seconds=1.0,
            cut_short=False, timer_retries=0, compared=judge.compared() if judge else {}, same_code=known,
            memory_bytes=dict.fromkeys(arms, 20_000), coldness=Coldness(
                touched_us=1.0, emptied_us=2.0, memory_gb_per_s=0.5 if self.warm(task) else 2.0,
            ),
        )  # fmt: skip

    def _samples(self, task: CompareTask | ConfirmTask, number: int, arm: str, factor: float) -> list[Sample]:
        span = round(TIME_NS * factor * math.exp(self.rng.gauss(0.0, SCATTER)))
        return [
            Sample(case=task.case.key, arm=arm, replicate=number, round=turn, position=0, span_ns=span, busy_ns=span, kernels=1)
            for turn in range(task.plan.rounds)
        ]

    def stop(self) -> None: ...

    def interrupt(self) -> None: ...


class FakePool(WorkerPool):
    def __init__(self, device: Device, worker: FakeWorker) -> None:
        super().__init__(device, [], timer="auto")
        self.native = self.interpreter = worker  # type: ignore[assignment]
        self.processes = 0

    def _new(self, count: int) -> list[Any]:
        worker = self.native
        numbers = range(self.processes, self.processes + count)
        self.processes += len(numbers)

        class Fresh:
            def __init__(self, number: int) -> None:
                self.number = number

            def ask(self, task: ConfirmTask, on_progress: Any) -> Any:
                return worker.ask_fresh(task, self.number)  # type: ignore[attr-defined]

            def start(self) -> None: ...

            def until_ready(self) -> None: ...

            def dismiss(self) -> None: ...

            def stop(self) -> None: ...

        return [Fresh(number + 1) for number in numbers]


class Bench:
    """Two folders of kernels; head's kernels a and b are changed unless a test says otherwise."""

    def __init__(self, folder: Path, toy: Path, source: Callable[..., str], device: Device, reporter: Any) -> None:
        self.folder, self.source, self.device, self.reporter = folder, source, device, reporter
        for side in ("new", "old"):
            shutil.copytree(toy, folder / side, ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("a", "b"):
                self.write(side, name, "x.mul_(factor)")
        self.worker = FakeWorker()
        self.options: dict[str, Any] = {"kernel": "[ab]"}
        self.looks = Plan()

    def write(self, side: str, name: str, body: str) -> None:
        (self.folder / side / "scale" / f"{name}.py").write_text(self.source(name, body))

    def change(self, *names: str) -> None:
        for name in names:
            self.write("new", name, "x.mul_(factor)  # changed")

    def engine(self) -> Engine[Case, Any, Any, Comparison]:
        revisions = Revisions(*(load_collection([self.folder / side], entry_points=False) for side in ("new", "old")))
        self.pool = FakePool(self.device, self.worker)
        context = MeasuringContext(self.device, self.folder, self.reporter, pool=self.pool, plan=PLAN)
        options = {name: value for name, value in self.options.items() if name != "budget_s"}
        strategy = ComparisonStrategy(context, revisions, BaseRevision(asked="main"), ComparisonOptions(looks=self.looks, **options))
        return Engine(strategy, self.options.get("budget_s"))

    def run(self, *cases: Case) -> Comparison:
        engine = self.engine()
        engine.run(cases)
        self.kept = engine.samples
        return engine.record()


@pytest.fixture
def bench(tmp_path: Path, source: Callable[..., str], cpu: Device, reporter: Any) -> Bench:
    return Bench(tmp_path, Path(__file__).parents[1] / "toy_project" / "kernels", source, cpu, reporter)


def only(comparison: Comparison, kernel: str = A) -> ComparedKernel:
    (found,) = [one for one in comparison.kernels if one.kernel == kernel]
    return found
