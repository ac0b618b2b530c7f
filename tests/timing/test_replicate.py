"""What of a replicate is timed again: rounds in which the device waited for the host, and calls that lack records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fusebench.errors import TimerError
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.replicate import LATE_RETRIES, RETRIES, TimedRounds, time_rounds

A, B = (Arm(name, lambda: None, lambda: None) for name in "AB")
ROUNDS = [[A, B], [B, A], [A, B], [B, A]]


class Stalling:
    """Answers by attempt and place within it; the span tells both."""

    name = "stalling"

    def __init__(self, late: Callable[[int, int, str], bool], kernels: Callable[[int, int], int] = lambda attempt, index: 2) -> None:
        self.late, self.kernels = late, kernels
        self.asked: list[str] = []

    def time_calls(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[CallTiming]:
        attempt = len(self.asked)
        self.asked.append("".join(arm.name for arm in calls))
        return [
            CallTiming(1000 * attempt + index, 1, self.kernels(attempt, index), self.late(attempt, index, arm.name))
            for index, arm in enumerate(calls)
        ]


def timed(timer: Stalling) -> TimedRounds:
    return time_rounds(ROUNDS, timer, lambda arm: None)


def spans(found: TimedRounds) -> list[list[int]]:
    return [[timing.span_ns for timing in timings] for timings in found.timings]


def test_rounds_without_a_stall_are_timed_once() -> None:
    timer = Stalling(lambda attempt, index, name: False)
    found = timed(timer)
    assert timer.asked == ["ABBAABBA"]
    assert (found.repeated_rounds, found.retries) == (0, 0)
    assert spans(found) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_round_in_which_the_host_came_late_is_timed_again_whole_and_in_its_order() -> None:
    timer = Stalling(lambda attempt, index, name: (attempt, index) in {(0, 3), (0, 4)})
    found = timed(timer)
    assert timer.asked == ["ABBAABBA", "BAAB"]
    assert found.repeated_rounds == 2
    assert spans(found) == [[0, 1], [1000, 1001], [1002, 1003], [6, 7]]
    assert not found.late_calls


def test_what_is_late_again_is_timed_again_and_in_the_end_kept_and_counted() -> None:
    timer = Stalling(lambda attempt, index, name: index == 0)
    found = timed(timer)
    assert timer.asked == ["ABBAABBA", *["AB"] * LATE_RETRIES]
    assert found.repeated_rounds == LATE_RETRIES
    assert spans(found)[0] == [1000 * LATE_RETRIES, 1000 * LATE_RETRIES + 1]
    assert found.late_calls == {"A": 1}


def test_an_arm_that_always_comes_late_is_not_waited_for_and_hides_no_stall_of_another() -> None:
    timer = Stalling(lambda attempt, index, name: name == "B" or (attempt, index) == (0, 0))
    found = timed(timer)
    assert timer.asked == ["ABBAABBA", "AB"], "the round of A's stall alone"
    assert found.late_calls == {"B": 4}


def test_an_arm_that_comes_late_in_half_of_its_calls_is_waited_for() -> None:
    timer = Stalling(lambda attempt, index, name: (attempt, index) in {(0, 1), (0, 2)})  # two of the four of B
    found = timed(timer)
    assert timer.asked == ["ABBAABBA", "ABBA"]
    assert not found.late_calls


def test_a_stall_of_another_arm_in_a_repeated_round_is_waited_for_too() -> None:
    timer = Stalling(lambda attempt, index, name: (attempt, index) in {(0, 2), (1, 1)})
    found = timed(timer)
    assert timer.asked == ["ABBAABBA", "BA", "BA"]
    assert spans(found) == [[0, 1], [2000, 2001], [4, 5], [6, 7]]
    assert found.repeated_rounds == 2


def test_a_slow_host_gets_more_of_a_head_start_until_a_chain_waits_no_more() -> None:
    """Planted: B waits in three of four calls, and in half of them with twice the head start, as a chain did in a nightly on an H200."""
    head_start = {"A": 1, "B": 1}
    late_places = {1: (1, 2, 5), 2: (1, 5)}  # of B in ABBAABBA, and of B in the rounds AB, BA, AB

    def lengthen(arm: str) -> None:
        head_start[arm] *= 2

    timer = Stalling(lambda attempt, index, name: name == "B" and index in late_places.get(head_start["B"], ()))
    found = time_rounds(ROUNDS, timer, lambda arm: None, lengthen)
    assert not found.late_calls
    assert head_start == {"A": 1, "B": 4}, "no arm that was in time waits longer"


def test_repeated_rounds_that_lack_records_are_repeated_by_themselves() -> None:
    """A lost record shows beside the calls that are known: both of B's repeated ones lack one."""
    stalled = {(0, 0), (0, 7)}
    timer = Stalling(
        lambda attempt, index, name: (attempt, index) in stalled, lambda attempt, index: 1 if attempt == 1 and index in (1, 2) else 2
    )
    found = timed(timer)
    assert timer.asked == ["ABBAABBA", "ABBA", "ABBA"]
    assert (found.repeated_rounds, found.retries) == (2, 1)
    assert {timing.kernels for timings in found.timings for timing in timings} == {2}


def test_records_that_are_always_lost_end_it() -> None:
    timer = Stalling(lambda attempt, index, name: False, lambda attempt, index: index % 2)
    with pytest.raises(TimerError, match="records were dropped"):
        timed(timer)
    assert len(timer.asked) == RETRIES + 1


@pytest.mark.gpu
@pytest.mark.alone
def test_on_a_gpu_a_planted_stall_is_seen_and_a_host_that_is_ahead_is_not_late() -> None:
    import time

    import torch

    from fusebench.timing.preparation import spin
    from fusebench.timing.timers.cupti import CuptiTimer

    x = torch.ones(1 << 16, device="cuda")
    unkept = 1  # the first call is made once more
    stall_s = 0.1  # before 40 calls of 0.5 ms are over, the host is up to 20 ms ahead of the device, and a shorter stall is none
    stalls = iter([False] * (unkept + 25) + [True] * 3)

    def chain() -> None:
        x.neg_()
        if next(stalls, False):
            time.sleep(stall_s)
        x.neg_()

    arm = Arm("chain", chain, lambda: None)
    timer = CuptiTimer()
    timer.time_calls([Arm("start", x.neg_, lambda: None)], lambda arm: None)
    timings = timer.time_calls([arm] * 40, lambda arm: spin(500.0))
    late = [number for number, timing in enumerate(timings) if timing.late]
    assert set(late) >= {25, 26, 27}
    assert len(late) <= 5, "a stall of the machine's own, now and then"
    assert all(timings[number].span_ns - timings[number].busy_ns > 1_000_000 for number in (25, 26, 27))
    stalls = iter([False] * (unkept + 30) + [True])
    found = time_rounds([[arm]] * 40, timer, lambda arm: spin(500.0))
    assert found.repeated_rounds >= 1
    assert not found.late_calls
