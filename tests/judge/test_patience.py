"""How long the judge waits: a busy compiler on a loaded machine is given its budget, a loop and a sleeper are called hung."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fusebench.judge import patience
from fusebench.judge.channel.protocol import ANSWERS, BatchDone, CallDone, Channel, ChannelTimeoutError, Inspected, Mark
from fusebench.judge.channel.region import Region
from fusebench.judge.confinement.confined_process import start_confined
from fusebench.judge.exchange import Exchange
from fusebench.judge.failures import CandidateError
from fusebench.judge.patience import Limits, Patience, Waiting
from fusebench.judge.process import KernelProcess
from fusebench.schema.evaluation import EvaluationStatus

HUNG, UNDECIDED = EvaluationStatus.HUNG, EvaluationStatus.UNDECIDED


class Clock:
    """Wall time, and the CPU time of a process that gets a share of a processor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cpu_s = 1000.0, 3.0
        monkeypatch.setattr(patience.time, "monotonic", lambda: self.now)

    def ending(self, allowed: Patience, share: float, *, busy_for: float = float("inf")) -> tuple[EvaluationStatus, float, str]:
        """How a request ends that is never answered, after how many seconds, and why."""
        began, waiting = self.now, Waiting(allowed, lambda: round(self.cpu_s * 1e9))
        while True:
            then = waiting.next_look
            self.cpu_s += share * max(0.0, min(then, began + busy_for) - self.now)
            self.now = then
            if failure := waiting.look("4 calls"):
                return failure.status, self.now - began, failure.reason


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_compiler_on_a_loaded_machine_is_short_of_time_and_not_hung(clock: Clock) -> None:
    status, waited, reason = clock.ending(Limits(clock.now + 180).first(), 0.25)
    assert (status, round(waited)) == (UNDECIDED, 180)
    assert reason == "the budget ended during 4 calls, after 180 s with 45 s of CPU time; raise --budget"


def test_a_compiler_that_the_end_of_the_budget_meets_is_not_hung(clock: Clock) -> None:
    limits = Limits(clock.now + 60)
    clock.now += 40
    assert clock.ending(limits.first(), 1.0)[:2] == (UNDECIDED, 20.0)


def test_a_first_call_that_computes_for_the_whole_budget_is_hung(clock: Clock) -> None:
    limits = Limits(clock.now + 60)
    clock.now += 5
    status, waited, reason = clock.ending(limits.first(), 1.0)
    assert (status, waited) == (HUNG, 55.0)
    assert reason == "no answer to 4 calls after 55 s with 54 s of CPU time; raise --budget if it compiles for so long"


def test_a_loop_on_a_loaded_machine_is_hung_with_the_budget_that_the_next_command_names(clock: Clock) -> None:
    assert [clock.ending(Limits(clock.now + budget).first(), 0.3)[0] for budget in (60, 120, 240, 480)] == [UNDECIDED] * 2 + [HUNG] * 2


@pytest.mark.parametrize("threads", [0.9, 8.0])
def test_a_later_call_that_loops_is_hung_after_so_much_time_on_a_processor(clock: Clock, threads: float) -> None:
    limits = Limits(clock.now + 900)
    limits.learn(0.1)
    status, waited, _ = clock.ending(limits.later(), threads)
    assert status is HUNG
    assert 15 <= waited <= 19
    assert clock.ending(limits.later(), 0.1)[:1] == (HUNG,), "in time, on a machine that gives it a tenth of a processor, too"


def test_a_later_call_is_granted_thirty_times_the_longest(clock: Clock) -> None:
    limits = Limits(clock.now + 900)
    limits.learn(2.0)
    assert 60 <= clock.ending(limits.later(), 1.0)[1] <= 62


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_a_process_that_sleeps_is_hung_however_large_the_budget(clock: Clock, share: float) -> None:
    limits = Limits(clock.now + 900)
    assert clock.ending(limits.first(), share)[:2] == (HUNG, 60.0)
    limits.learn(0.1)
    status, waited, reason = clock.ending(limits.later(), share)
    assert (status, waited) == (HUNG, 15.0)
    assert reason == "no answer for 15 s during 4 calls, and no progress for 15 s"


def test_a_compiler_that_falls_silent_is_hung(clock: Clock) -> None:
    assert clock.ending(Limits(clock.now + 900).first(), 0.5, busy_for=100.0)[:2] == (HUNG, 160.0)


def test_silence_at_the_deadline_counts_from_five_seconds_on(clock: Clock) -> None:
    limits = Limits(clock.now + 60)
    clock.now += 56
    assert clock.ending(limits.first(), 0.0)[:1] == (UNDECIDED,)
    limits = Limits(clock.now + 60)
    clock.now += 54
    assert clock.ending(limits.first(), 0.0)[:1] == (HUNG,)


class Asked:
    """A process that answers every batch, and keeps how long it was given."""

    def __init__(self) -> None:
        self.region, self.marks, self.confined = Region.make(), [], True
        self.given: list[Patience] = []

    def cpu_ns(self) -> int:
        return 0

    def ask(self, request: Any, kind: Any, *, doing: str, patience: Patience) -> Any:
        if kind is Inspected:
            return Inspected(token=""), 0.0
        self.given.append(patience)
        return BatchDone(token="", calls=(CallDone(span_ns=1, outputs=None),) * len(request.calls), late_share=0.0), 0.01


def test_every_shape_has_a_first_call() -> None:
    process, limits = Asked(), Limits(time.monotonic() + 60)
    limits.learn(0.01)
    exchange = Exchange(process, ())  # type: ignore[arg-type]

    def may_compile(*shapes: tuple[int, ...]) -> bool:
        exchange.run([{"x": torch.ones(shape), "eps": 1e-6} for shape in shapes], limits=limits, doing="calls")
        return process.given[-1].busy_s == float("inf")

    assert may_compile((4, 8))
    assert not may_compile((4, 8), (4, 8))
    assert may_compile((4, 8), (5, 8))
    assert not may_compile((5, 8))
    exchange.run([{"x": torch.ones((5, 8), dtype=torch.float16)}], limits=limits, doing="calls")
    assert process.given[-1].busy_s == float("inf"), "another dtype is compiled anew"


def test_a_message_that_comes_in_pieces_is_read_after_timeouts() -> None:
    """Between two looks the judge stops reading; no byte may be lost."""
    reading, writing = os.pipe()
    channel, body = Channel(reading, writing), msgspec.msgpack.encode(Mark(token="a" * 32))
    for byte in (len(body).to_bytes(4, "little") + body)[:-1]:
        os.write(writing, bytes([byte]))
        with pytest.raises(ChannelTimeoutError):
            channel.receive(ANSWERS, deadline=time.monotonic() + 1e-4)
    os.write(writing, body[-1:])
    assert channel.receive(ANSWERS, deadline=time.monotonic() + 5) == Mark(token="a" * 32)
    channel.close()


@pytest.mark.parametrize(
    ("code", "given", "status"),
    [
        ("while True: pass", {"busy_s": 0.2}, HUNG),
        ("import os\nos.fork()\nwhile True: pass", {}, UNDECIDED),
        ("import time\ntime.sleep(600)", {"idle_s": 0.5}, HUNG),
    ],
)
def test_a_process_without_an_answer_is_killed_and_blamed_for_what_it_did(
    code: str, given: dict[str, float], status: EvaluationStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LOOK_S", 0.05)
    process = KernelProcess.__new__(KernelProcess)
    process._prepared, process.confined, process._channel = True, False, Channel(*os.pipe())
    process._process = start_confined([sys.executable, "-c", code], scratch=tmp_path)
    deadline = time.monotonic() + (1.0 if status is UNDECIDED else 60.0)
    with pytest.raises(CandidateError) as caught:
        process._received(Waiting(Patience(deadline, **given), process.cpu_ns), "4 calls")
    assert (caught.value.status, process.alive) == (status, False)
    process._channel.close()
