"""CPU time that a candidate's own clock leaves out is seen by the kernel's account of its process."""

from __future__ import annotations

import subprocess
import sys

from fusebench.judge.crosscheck import BatchPair, hidden_cpu
from fusebench.judge.process import KernelProcess

PAIRS = [BatchPair(candidate_us=10.0, candidate_wall_us=500.0, twin_us=120.0, twin_wall_us=600.0)] * 12


def test_work_beside_the_clock_is_named() -> None:
    assert "used 110 us of CPU time more" in hidden_cpu([110.0] * 12, PAIRS)


def test_batches_that_waited_for_the_processor_hide_nothing_of_the_others() -> None:
    assert hidden_cpu([110.0] * 9 + [-3000.0] * 3, PAIRS)


def test_an_honest_process_differs_by_little() -> None:
    assert hidden_cpu([20.0, -45.0, 19.0, -1.0, 10.0, -87.0, 35.0, 60.0, -20.0, 15.0, 2.0, 900.0], PAIRS) == ""


def test_the_account_is_that_of_the_other_process() -> None:
    worker = subprocess.Popen([sys.executable, "-S", "-c", "sum(range(10**6)); print(flush=True); input()"], stdin=-1, stdout=-1)
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.readline()
    seen = KernelProcess.__new__(KernelProcess)
    seen._process = worker  # type: ignore[assignment]
    used = seen.cpu_ns()
    worker.communicate(b"\n")
    assert used > 10**6
    assert seen.cpu_ns() == 0
