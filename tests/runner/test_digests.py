"""Machine code in a run's record: heard by the worker before anything is timed, kept with every result, and none where it is unknown."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.device import Device
from fusebench.registry import Collection
from fusebench.runner.case_kernels import case_kernels, result_for
from fusebench.runner.context import MeasuringContext
from fusebench.runner.run.measured_case import CaseMeasurement
from fusebench.runner.run.options import default_plan
from fusebench.runner.run.resuming import Resumed
from fusebench.runner.run.strategy import renamed
from fusebench.runner.run.summarise import CaseFigures
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import Checked, CheckTask, Measured, TimeTask, WorkerSetup
from fusebench.schema import CacheState, Case, Sample, SamplingPlan, Status
from fusebench.store.baselines import load_baseline, promote
from fusebench.store.run_folder import write_run
from fusebench.timing.measure import CODE

PLAN = SamplingPlan(replicates=2, rounds=2, cache=CacheState.WARM, trim=0.0)
SPLIT, GOOD = "scale/split@1", "scale/good@1"
REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("forked_workers")


def task(case: Case, *kernels: str, digested: tuple[str, ...]) -> TimeTask:
    return TimeTask(case=case, kernels=(SPLIT, *kernels), baseline=SPLIT, plan=PLAN, timer="auto", seed=1, digested=digested)


def code(worker: WorkerProcess, case: Case, *kernels: str) -> dict[str, str]:
    reply = worker.ask(task(case, *kernels, digested=kernels))
    assert isinstance(reply, Measured), reply
    assert reply.phases_s[CODE] >= 0.0
    assert len(reply.samples) == PLAN.replicates * PLAN.rounds * (4 + len(kernels)), "the call that is heard is none of those timed"
    return reply.code


def test_code_is_equal_in_another_process_and_differs_where_the_kernel_or_the_case_does(
    tmp_path: Path, root: Path, source: Callable[..., str], case: Case, worker: WorkerProcess
) -> None:
    first = code(worker, case, GOOD)
    assert set(first) == {GOOD}
    shutil.copytree(root, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "kernels" / "scale"
    (folder / "good.py").write_text(source("good", "x.mul_(factor)  # another text"))
    (folder / "slower.py").write_text(source("slower", "x.mul_(factor).add_(0.0)"))
    with WorkerProcess(WorkerSetup(roots=(tmp_path / "kernels",), device="cpu"), silence_s=60.0) as other:
        second = code(other, case, GOOD, "scale/slower@1")
        assert second[GOOD] == first[GOOD]
        assert second["scale/slower@1"] != first[GOOD]
        larger = msgspec.structs.replace(case, params={"size": 8192})
        assert code(other, larger, GOOD)[GOOD] != first[GOOD]


def test_an_arm_that_is_not_asked_about_is_not_called_once_more(worker: WorkerProcess, case: Case) -> None:
    reply = worker.ask(task(case, GOOD, digested=()))
    assert isinstance(reply, Measured)
    assert (reply.code, reply.same_code) == ({}, {})


def figures(collection: Collection, case: Case, **known: Any) -> CaseFigures:
    arms = ("copy", "stream", "control", SPLIT, GOOD)
    samples = [
        Sample(case=case.key, arm=arm, replicate=replicate, round=0, position=0, span_ns=1000, busy_ns=1000, kernels=1)
        for arm in arms
        for replicate in range(2)
    ]
    measured = Measured(
        samples=samples, host_us={}, extra_memory_bytes={}, timer="host", timer_fallback="", warm_up={}, seconds=1.0, cut_short=False,
        timer_retries=0, **known,
    )  # fmt: skip
    return CaseFigures(case_kernels(collection, case, "cpu"), [measured], PLAN)


def test_what_a_kernel_launched_is_kept_with_its_result_and_with_copies_of_it(collection: Collection, case: Case) -> None:
    checked = result_for(case, "4096", collection.kernel(GOOD), Status.CHECKED)
    found = figures(collection, case, code={GOOD: "c0de"})
    result = found.measured(checked)
    assert (result.status, result.code) == (Status.MEASURED, "c0de")
    assert result.measurement == found.measurement(GOOD)
    assert figures(collection, case).measured(checked).code is None
    other = msgspec.structs.replace(case, suite="other")
    copy = renamed(result, other)
    assert (copy.suite, copy.code) == ("other", "c0de")


@pytest.mark.parametrize(("kind", "asked"), [("cuda", (GOOD, SPLIT)), ("cpu", ())])
def test_a_run_asks_for_code_on_a_gpu_alone(
    *, collection: Collection, case: Case, cpu: Device, reporter: Any, monkeypatch: pytest.MonkeyPatch, kind: str, asked: tuple[str, ...]
) -> None:
    tasks: list[TimeTask] = []

    def answer(task: TimeTask, *_: Any, **__: Any) -> Any:
        tasks.append(task)
        raise KeyboardInterrupt

    ready = [result_for(case, "4096", collection.kernel(kernel), Status.CHECKED) for kernel in (GOOD, SPLIT)]
    monkeypatch.setattr("fusebench.runner.run.measured_case.check_all", lambda *_, **__: ready)
    device = Device(kind=kind, name="Toy")  # type: ignore[arg-type]
    context = MeasuringContext(cpu, Path(), reporter, pool=WorkerPool(device, []), plan=default_plan(kind))
    context.device = device
    monkeypatch.setattr(context, "ask", answer)
    work = CaseMeasurement(case_kernels(collection, case, "cpu"), context)
    with pytest.raises(KeyboardInterrupt):
        work.measure(seconds=None)
    assert [task.digested for task in tasks] == [asked]


def test_code_survives_resuming_storing_and_promoting(tmp_path: Path, synthetic: Any) -> None:
    run = synthetic.change_results(synthetic.make_run(), code="c0de")
    stopped = Resumed(msgspec.structs.replace(run, complete=False), [])
    first = run.cases[0].case
    kernels = [result.kernel for result in run.results if result.case_key == first.key]
    taken = stopped.finished(first, kernels)
    assert taken is not None
    assert {result.code for result in taken[1]} == {"c0de"}
    promote(write_run(tmp_path / "runs", run, synthetic.make_samples(run)), tmp_path)
    stored = load_baseline(tmp_path, run.environment.device_name)
    assert stored is not None
    assert {result.code for result in stored.results} == {"c0de"}


def test_a_baseline_from_before_code_was_kept_is_read(tmp_path: Path, synthetic: Any) -> None:
    run = synthetic.make_run()
    folder = write_run(tmp_path / "runs", run, synthetic.make_samples(run))
    record = synthetic.as_version_2(folder)
    older = msgspec.json.decode(record.read_bytes())
    for result in older["results"]:
        assert result.pop("code") is None
    record.write_bytes(msgspec.json.encode(older))
    promote(folder, tmp_path)
    stored = load_baseline(tmp_path, run.environment.device_name)
    assert stored == run


@pytest.mark.gpu
def test_on_a_gpu_code_does_not_depend_on_what_was_compiled_before() -> None:
    """torch's Inductor used to hand the Triton kernels that were compiled after it to another assembler."""
    params = {"batch": 1, "tokens": 384, "heads": 24, "head_dim": 128, "rope_dim": 128, "layout": "interleaved", "dtype": "bfloat16"}
    case = Case(suite="s", name="c", op="qknorm_rope", params=params)
    kernels = ("qknorm_rope/split_triton@1", "qknorm_rope/fused_triton@2")
    asked = TimeTask(case=case, kernels=kernels, baseline=kernels[0], plan=PLAN, timer="auto", seed=1, digested=kernels)
    found = []
    for first in ("compiled@1", "fused_triton@2"):
        with WorkerProcess(WorkerSetup(roots=(REPOSITORY / "kernels",), device="cuda:0"), silence_s=300.0) as worker:
            assert isinstance(worker.ask(CheckTask(case=case, kernel=f"qknorm_rope/{first}", seed=1)), Checked)
            reply = worker.ask(asked)
            assert isinstance(reply, Measured), reply
            found.append(reply.code)
    assert set(found[0]) == set(kernels)
    assert found[0] == found[1]


@pytest.mark.gpu
def test_on_a_gpu_the_code_of_every_kernel_of_ours_is_known_and_equal_in_a_fresh_process() -> None:
    """Also after the process has replayed the kernel's launches, which is what its timed calls do."""
    params = {"batch": 1, "tokens": 512, "heads": 24, "head_dim": 128, "rope_dim": 128, "layout": "interleaved", "dtype": "bfloat16"}
    case = Case(suite="s", name="c", op="qknorm_rope", params=params)
    kernels = tuple(
        f"qknorm_rope/{name}" for name in ("split_torch@1", "split_triton@1", "fused_triton@1", "fused_triton@2", "fused_cuda@1")
    )
    asked = TimeTask(
        case=case, kernels=(*kernels, "qknorm_rope/compiled@1"), baseline=kernels[1], plan=PLAN, timer="auto", seed=1,
        digested=(*kernels, "qknorm_rope/compiled@1"),
    )  # fmt: skip
    found = []
    for _ in range(2):
        with WorkerProcess(WorkerSetup(roots=(REPOSITORY / "kernels",), device="cuda:0"), silence_s=300.0) as worker:
            for _ in range(2):
                reply = worker.ask(asked)
                assert isinstance(reply, Measured), reply
                found.append(reply.code)
    assert set(found[0]) == set(kernels), "torch.compile's launches are not heard"
    assert len(set(found[0].values())) == len(kernels)
    assert all(one == found[0] for one in found)
