"""CPU time that a candidate's own clock leaves out is seen by the kernel's account of its process."""

from __future__ import annotations

import itertools
import subprocess
import sys

from fusebench.judge.confinement.confined_process import ConfinedProcess
from fusebench.judge.crosscheck import BatchPair, CpuPair, hidden_cpu, unclaimed_us, unexcluded_us

PAIRS = [BatchPair(candidate_us=10.0, candidate_wall_us=500.0, baseline_us=120.0, baseline_wall_us=600.0)] * 12


def outside(*hidden_us: float, baseline_us: tuple[float, ...] = (900.0,)) -> list[CpuPair]:
    """Pairs with these differences from the baseline's figures, which repeat."""
    figures = itertools.cycle(baseline_us)
    return [CpuPair(baseline + hidden, baseline) for hidden, baseline in zip(hidden_us, figures, strict=False)]


def test_hidden_work_earns_nothing() -> None:
    assert unclaimed_us(outside(*[110.0] * 12)) == 110.0


def test_a_speedup_holds_what_the_account_does_not_exclude_against_a_candidate() -> None:
    """Planted: 80 us a call are hidden under noise of 200 us, so that little of it can be added to the claimed time."""
    noisy = outside(*[80.0 + noise for noise in (-100.0, -40.0, 0.0, 40.0, 90.0, 100.0)] * 2)
    assert unclaimed_us(noisy) < 80.0
    assert unclaimed_us(noisy) + unexcluded_us(noisy) > 80.0
    assert unexcluded_us(outside(*[110.0] * 12)) == 0.0, "it is all added already"
    assert unexcluded_us([]) == 0.0


def test_a_claim_that_hides_most_of_the_work_is_suspicious() -> None:
    assert "its clock says 10.0 us a call, but its process used 110 us" in hidden_cpu(outside(*[110.0] * 12), PAIRS)


def test_an_honest_call_that_is_shorter_than_the_noise_is_believed() -> None:
    assert hidden_cpu(outside(*[55.0] * 12), PAIRS) == ""


def test_much_hidden_work_is_suspicious() -> None:
    assert "used 400 us of CPU time more" in hidden_cpu(outside(*[400.0] * 12), PAIRS)


def test_threads_of_a_call_cost_time_and_are_no_deceit() -> None:
    threaded = [pair._replace(others_us=400.0) for pair in outside(*[400.0] * 12)]
    assert hidden_cpu(threaded, PAIRS) == ""
    assert unclaimed_us(threaded) == 400.0


def test_batches_that_waited_for_the_processor_hide_nothing_of_the_others() -> None:
    assert hidden_cpu(outside(*[400.0] * 7, -3000.0, *[400.0] * 4), PAIRS)


def test_a_process_that_grows_its_heap_is_honest() -> None:
    assert unclaimed_us(outside(*[210.0] * 6, -3.0, 12.0, -20.0, 5.0, -40.0, 8.0)) == 0.0


def test_few_batches_are_held_to_the_account_too() -> None:
    """A candidate that stalls where no clock runs makes the time end after three."""
    few = outside(*[400.0] * 3)
    assert unclaimed_us(few) == 400.0
    assert "used 400 us of CPU time more" in hidden_cpu(few, PAIRS[:3])


def test_a_busy_machine_accuses_nobody() -> None:
    assert hidden_cpu(outside(*[400.0] * 12, baseline_us=(700.0, 1500.0, 900.0)), PAIRS) == ""


def test_a_claim_beyond_the_split_chains_time_accuses_nobody() -> None:
    slow = [pair._replace(candidate_us=4200.0) for pair in PAIRS]
    assert hidden_cpu(outside(*[900.0] * 12), slow) == ""
    assert unclaimed_us(outside(*[900.0] * 12)) == 900.0, "it is added all the same"


def test_the_account_is_that_of_the_other_process() -> None:
    code = "sum(range(10**6)); print(flush=True); input()"
    worker = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=-1, stdout=-1, start_new_session=True)
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.readline()
    seen = ConfinedProcess.__new__(ConfinedProcess)
    seen._process = worker
    used = seen.cpu_ns()
    worker.communicate(b"\n")
    assert used > 10**6
    assert seen.cpu_ns() == 0
