"""Workers that measure on a CPU: each computes with one thread and keeps its memory, and one that does not is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusebench.device import Device
from fusebench.device.cpu_process import expected_settings, settings
from fusebench.runner.workers.pool import WorkerPool
from fusebench.runner.workers.process import WorkerProcess
from fusebench.runner.workers.protocol import CheckTask, Failure, Measured, TimeTask, WorkerSetup
from fusebench.schema import CacheState, Case, SamplingPlan

pytestmark = pytest.mark.usefixtures("forked_workers")
TELLS = """
from fusebench import kernel


@kernel("scale", "tells", version=1, role="fused", language="torch")
def tells(x, *, factor=2.0):
    import resource
    import torch

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.empty(15 * 2**19).zero_() for _ in range(3)]  # 30 MiB each, of 7680 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()  # the first call grows the heap in any process
    later = [faults() for _ in range(4)]
    raise KeyError(torch.get_num_threads(), min(later), max(later))
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    root = tmp_path / "kernels"
    (root / "scale").mkdir(parents=True)
    for name in ("op.py", "split.py"):
        shipped = Path(__file__).parents[2] / "toy_project" / "kernels" / "scale" / name
        (root / "scale" / name).write_text(shipped.read_text())
    (root / "scale" / "tells.py").write_text(TELLS)
    return root


def told(root: Path, case: Case, cpu_process: str) -> tuple[int, int, int]:
    """Threads of a fresh worker, and the fewest and the most page faults of a call with temporaries after the first."""
    setup = WorkerSetup(roots=(root,), device="cpu", threads=2, cpu_process=cpu_process)
    with WorkerProcess(setup, silence_s=60.0) as worker:
        reply = worker.ask(CheckTask(case=case, kernel="scale/tells@1", seed=1))
    assert isinstance(reply, Failure)
    found = re.search(r"KeyError: \((\d+), (\d+), (\d+)\)", reply.reason)
    assert found is not None, reply.reason
    return int(found[1]), int(found[2]), int(found[3])


def test_a_fresh_worker_computes_with_one_thread_and_keeps_its_memory(kernels: Path, case: Case) -> None:
    threads, fewest, _ = told(kernels, case, expected_settings())
    assert (threads, fewest) == (1, 0)
    threads, _, most = told(kernels, case, "")
    assert (threads, most > 7680) == (2, True), f"a worker that only checks shows that the test can fail, not {most}"


@pytest.mark.parametrize("planted", [lambda: expected_settings().replace("1 thread", "2 threads"), lambda: settings(held=False)])
def test_a_worker_that_would_measure_otherwise_than_the_run_is_refused(kernels: Path, case: Case, planted: object) -> None:
    assert callable(planted)
    plan = SamplingPlan(replicates=2, rounds=2, cache=CacheState.WARM, trim=0.0)
    task = TimeTask(case=case, kernels=("scale/split@1",), baseline="scale/split@1", plan=plan, timer="host", seed=1)

    def measured(cpu_process: str) -> object:
        with WorkerProcess(WorkerSetup(roots=(kernels,), device="cpu", cpu_process=cpu_process), silence_s=60.0) as worker:
            return worker.ask(task)

    assert isinstance(measured(expected_settings()), Measured)
    refused = measured(planted())
    assert isinstance(refused, Failure)
    assert refused.unfit, "the process is at fault, and no kernel"
    assert refused.reason.startswith(f"this process would measure with {expected_settings()}; expected {planted()}")


def test_every_worker_of_a_pool_that_times_on_a_cpu_has_the_settings(cpu: Device) -> None:
    pool = WorkerPool(cpu, (), timer="host")
    assert {one._setup.cpu_process for one in (pool.native, pool.interpreter, *pool._new(2))} == {expected_settings()}
    others = WorkerPool(cpu, ()), WorkerPool(Device(kind="cuda", name="GPU", index=0), (), timer="cupti")
    assert {one.native._setup.cpu_process for one in others} == {""}
