"""Kernels that compute when they are checked and cheat when they are timed: each one is planted, found, and leaves the others' times."""

from __future__ import annotations

import gc
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.accuracy.memory import GUARD_BYTES
from fusebench.accuracy.timed_outputs import WRONG_WHEN_TIMED, TimedOutputs
from fusebench.registry import Collection, Kernel
from fusebench.schema import SamplingPlan
from fusebench.timing import placement, verification, watch
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.case_timings import CaseTimings
from fusebench.timing.measure import measure_case
from fusebench.timing.pairs import Pair
from fusebench.timing.placement import CONTROL, ArmSpec, arm_specs
from fusebench.timing.timers.host import HostTimer, without_waiting
from fusebench.timing.values import WINDOWS, FreshValues
from fusebench.timing.verification import burst_us, contradicts
from fusebench.timing.watch import Watcher

SIZE = 3000
CPU = torch.device("cpu")
KERNEL = "scale/planted@1"
Function = Callable[..., Any]


@pytest.fixture
def measured(
    toy: Collection,
    make_kernel: Callable[..., Kernel],
    make_plan: Callable[..., SamplingPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., CaseTimings]:
    """`measured(function)`: the split chain, its control and the planted kernel, timed on the host."""
    monkeypatch.setattr(placement, "PADDING_LIMIT", 4096)

    def run(function: Function, *, timer: Any = None, rounds: int = 6, **options: Any) -> CaseTimings:
        op, split = toy.ops["scale"], toy.kernels["scale/split@1"]
        specs = arm_specs([make_kernel("planted", function)], split)
        return measure_case(
            "suite:case", op, op.Params(size=SIZE), specs, device=CPU, plan=make_plan(rounds=rounds), timer=timer or HostTimer(), seed=5,
            outputs=TimedOutputs(op, split=split, others=lambda kernel: toy.kernels), **options,
        )  # fmt: skip

    return run


def honest(x: torch.Tensor, *, factor: float) -> None:
    x.mul_(factor)


@pytest.mark.parametrize("function", [honest, lambda x, *, factor: x * factor, lambda x, *, factor: (x * factor,)])
def test_an_honest_kernel_is_right_when_timed(measured: Callable[..., CaseTimings], function: Function) -> None:
    timings = measured(function)
    assert (timings.wrong, timings.suspicious, timings.unverified) == ({}, {}, "")
    assert timings.outputs_compared == 2 * 3, "two calls of each of three arms"


def later_idle(honest_calls: int = 2) -> Function:
    """Works in its first calls, as while it is checked; then does nothing."""
    left = [honest_calls]

    def kernel(x: torch.Tensor, *, factor: float) -> None:
        left[0] -= 1
        if left[0] >= 0:
            x.mul_(factor)

    return kernel


def by_address() -> Function:
    kept: dict[int, torch.Tensor] = {}
    return lambda x, *, factor: kept.setdefault(x.data_ptr(), x * factor)


def by_shape() -> Function:
    kept: dict[Any, torch.Tensor] = {}
    return lambda x, *, factor: kept.setdefault(x.shape, x * factor)


class Lazy(torch.Tensor):
    pass


def later(x: torch.Tensor, *, factor: float) -> None:
    threading.Timer(0.01, lambda: x.mul_(factor)).start()


def moved(x: torch.Tensor, *, factor: float) -> None:
    x.set_(torch.zeros_like(x))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (later_idle(), "exceeds"),
        (by_address(), "exceeds"),
        (by_shape(), "exceeds"),
        (lambda x, *, factor: (x * factor).as_subclass(Lazy), "is a .*Lazy, which is a subclass"),
        (lambda x, *, factor: (x * factor).requires_grad_(), "gradient graph"),
        (later, "exceeds"),
        (moved, "moved an argument"),
        (lambda x, *, factor: None if threading.active_count() else 0, "exceeds"),
        (lambda x, *, factor: "x", "returned str, expected one tensor per output"),
        (lambda x, *, factor: (x * factor)[:-1], "shape"),
    ],
    ids=["no-op once timed", "by address", "by shape", "subclass", "graph", "later", "moved", "no-op", "no tensor", "short"],
)
def test_a_kernel_that_cheats_when_timed_is_wrong_and_the_others_are_not(
    measured: Callable[..., CaseTimings], function: Function, said: str
) -> None:
    timings = measured(function)
    assert set(timings.wrong) == {KERNEL}
    assert timings.wrong[KERNEL].startswith(f"{WRONG_WHEN_TIMED}: ")
    assert re.search(said, timings.wrong[KERNEL]), timings.wrong[KERNEL]


def test_a_fingerprint_of_the_inputs_never_repeats_while_calls_are_timed(measured: Callable[..., CaseTimings]) -> None:
    """So a kernel that keeps results by fingerprint computes in every timed call."""
    prints: Counter[float] = Counter()
    armed = [False]

    def remembers(x: torch.Tensor, *, factor: float) -> None:
        prints[float(x.sum())] += armed[0]
        x.mul_(factor)

    def arm() -> None:
        armed[0] = True

    measured(remembers, settle=lambda work: arm())
    bursts = verification.BURSTS * verification.BURST_CALLS
    repeated = [count for count in prints.values() if count > 1]
    assert sum(prints.values()) >= 12
    assert len(repeated) <= 3 + bursts, "the first call of a placement and calls of a burst alone"
    assert len(prints) >= 12


def test_a_call_that_leaves_a_thread_at_work_is_suspicious_although_its_output_is_right(
    measured: Callable[..., CaseTimings], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def busy(x: torch.Tensor, *, factor: float) -> None:
        x.mul_(factor)
        threading.Thread(target=stop.wait, args=(10.0,)).start()

    monkeypatch.setattr(watch, "PATIENCE_S", 0.02)
    try:
        timings = measured(busy)
    finally:
        stop.set()
    assert timings.wrong == {}
    assert "threads that a call started were alive when it returned" in timings.suspicious[KERNEL]
    assert set(timings.suspicious) == {KERNEL}, timings.suspicious


def test_a_thread_that_works_between_calls_is_seen() -> None:
    stop = threading.Event()

    def works() -> None:
        while not stop.is_set():
            time.thread_time_ns()

    worker = threading.Thread(target=works)
    worker.start()
    try:
        said = watch._working_threads()
    finally:
        stop.set()
        worker.join()
    assert "us after a call had returned" in said
    assert watch._working_threads() == ""


@pytest.mark.parametrize(
    ("pause_ms", "ran_ms", "waited_ms", "works"),
    [
        (5, 2, 0, True),
        (60, 2, 0, False),
        (60, 2, 50, False),
        (60, 10, 50, True),
        (60, 5, 50, True),
        (5, 1, 0, False),
        (5, 0.045, 4.95, False),
    ],
    ids=[
        "quiet machine",
        "long pause",
        "waits too",
        "works when it has a core",
        "works half of that",
        "hardly works",
        "comes to rest when it has a core",
    ],
)
def test_what_a_thread_does_in_a_pause_that_a_busy_machine_draws_out_is_held_against_the_time_it_lasted(
    monkeypatch: pytest.MonkeyPatch, pause_ms: int, ran_ms: float, waited_ms: float, works: bool
) -> None:
    """Two milliseconds of some thread of the process, in a pause of 60, made honest kernels suspicious."""
    clock = [0]
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    monkeypatch.setattr(watch.time, "monotonic_ns", lambda: clock[0] * 1_000_000)
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: clock.__setitem__(0, pause_ms))

    def scheduled(thread: int) -> tuple[int, int]:
        done = clock[0] > 0 and thread == other.native_id
        return (7 + int(done * ran_ms * 1e6), 9 + int(done * waited_ms * 1e6))

    monkeypatch.setattr(watch, "_scheduled_ns", scheduled)
    try:
        assert bool(watch._working_threads()) is works
    finally:
        stop.set()
        other.join()


def test_a_replaced_clock_changes_no_time(measured: Callable[..., CaseTimings], monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(x: torch.Tensor, *, factor: float) -> None:
        monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
        monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
        time.sleep(0.0005)
        x.mul_(factor)

    timings = measured(frozen, rounds=3)
    assert all(sample.span_ns >= 500_000 for sample in timings.samples if sample.arm == KERNEL)


def work() -> None:
    """A millisecond of processor time."""
    end = time.thread_time_ns() + 1_000_000
    while time.thread_time_ns() < end:
        pass


class LyingTimer(HostTimer):
    """Claims a microsecond for every call."""

    def time_calls(self, calls: Any, prepare: Any) -> list[CallTiming]:
        return [timing._replace(span_ns=1000) for timing in super().time_calls(calls, prepare)]


def test_a_time_that_a_burst_contradicts_is_suspicious(measured: Callable[..., CaseTimings]) -> None:
    def slow(x: torch.Tensor, *, factor: float) -> None:
        work()
        x.mul_(factor)

    timings = measured(slow, timer=LyingTimer(), rounds=2)
    assert "us by its timer, and" in timings.suspicious[KERNEL]
    assert "scale/split@1" not in timings.suspicious
    assert measured(slow, rounds=2).suspicious == {}


def test_a_burst_contradicts_only_what_claims_far_less() -> None:
    assert contradicts(10.0, 100.0)
    assert not contradicts(60.0, 100.0), "more than half of it"
    assert not contradicts(1.0, 20.0), "a host adds as much to a short call"
    assert not contradicts(1.0, 0.0), "a burst that says nothing"
    arm = Arm("works", work, lambda: None)
    assert burst_us(arm, CPU, 2, 0.0) >= 500
    assert burst_us(Arm("waits", lambda: time.sleep(0.001), lambda: None), CPU, 2, 0.0) < 500, "other programs may have made it wait"


def test_timed_and_checked_calls_find_the_same_buffers_and_no_garbage_collection(measured: Callable[..., CaseTimings]) -> None:
    """Planted in the check by tests/accuracy: a kernel that is right on buffers of one kind alone."""
    seen: list[tuple[bool, bool]] = []

    def spy(x: torch.Tensor, *, factor: float) -> None:
        words = torch.empty(0, dtype=torch.int16).set_(x.untyped_storage(), x.storage_offset() * 2 - 1, (1,))
        guarded = int(words[0]) == 0x7FA5 and x.storage_offset() * 4 >= GUARD_BYTES
        seen.append((guarded, gc.isenabled()))
        x.mul_(factor)

    measured(spy)
    assert set(seen) == {(True, False)}


def test_values_are_windows_of_a_draw_and_integers_are_whole_draws(toy: Collection) -> None:
    class Mixed(type(toy.ops["scale"])):  # type: ignore[misc]
        def buffers(self, params: Any, *, device: Any, generator: Any, magnitude: float = 1.0) -> dict[str, torch.Tensor]:
            rows = torch.randn(params.size, 4, generator=generator) + torch.tensor([0.0, 100.0, 200.0, 300.0])
            return {"x": rows, "weight": torch.randn(8, generator=generator), "positions": torch.arange(params.size)}

    op = Mixed()
    values = FreshValues(op, op.Params(size=5000), device=CPU, generator=torch.Generator().manual_seed(1), rng=random.Random(2))
    keys = [values.next_key() for _ in range(WINDOWS)]
    assert len({key[0] for key in keys}) == WINDOWS, "no place of the largest input repeats"
    one = values.at(keys[0])
    assert torch.equal(one["x"].mean(0).round(decimals=-2), torch.tensor([0.0, 100.0, 200.0, 300.0])), "channels keep their places"
    assert torch.equal(one["positions"], torch.arange(5000))
    assert {name: tensor.shape for name, tensor in one.items()} == {name: tensor.shape for name, tensor in values.items()}
    assert not torch.equal(one["x"], values.at(keys[1])["x"])


def test_every_replicate_and_call_may_be_the_one_that_is_judged() -> None:
    class Common:
        def next_key(self) -> tuple[int, ...]:
            return (0,)

    class Spy:
        def __init__(self) -> None:
            self.values = common
            self.kept: dict[int, Any] = {}
            self.left_running = ""
            self.replicate = -1

        def choose(self, choices: Any) -> None:
            self.replicate += 1
            self.kept = {choice.slot: (self.replicate, choice.number) for choice in choices}

    common, judged = Common(), Counter[tuple[int, int]]()
    for seed in range(600):
        watcher, spy = Watcher(random.Random(seed), 1), Spy()
        for _ in range(3):
            watcher.choose({"a": spy}, common, 4)  # type: ignore[dict-item, arg-type]
            watcher.collect({"a": spy})  # type: ignore[dict-item]
        judged[watcher.kept["a"][0]] += 1  # type: ignore[index]
    assert set(judged) == {(replicate, number) for replicate in range(3) for number in range(4)}
    assert min(judged.values()) > 20, "600 of 12: each about 50 times"


def test_arms_that_share_buffers_are_judged_on_the_values_of_their_own_calls(
    toy: Collection, make_kernel: Callable[..., Kernel], make_plan: Callable[..., SamplingPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair with more elements on one side, as `calibrate` has it, and a cheat on the other."""
    monkeypatch.setattr(placement, "PADDING_LIMIT", 4096)
    op, split = toy.ops["scale"], toy.kernels["scale/split@1"]
    for function, wrong in ((honest, set()), (by_address(), {"cheat"})):
        specs = [ArmSpec("more", split, op.Params(size=SIZE + 99)), ArmSpec("cheat", make_kernel("planted", function)), ArmSpec("a", split)]
        timings = measure_case(
            "suite:case", op, op.Params(size=SIZE), specs, device=CPU, plan=make_plan(), timer=HostTimer(), seed=5,
            outputs=TimedOutputs(op, split=split, others=lambda kernel: toy.kernels),
            pairs=[Pair("one", new="more", old="cheat"), Pair("two", new="a", old="cheat")],
        )  # fmt: skip
        assert set(timings.wrong) == wrong
        assert timings.outputs_compared == 6


def test_the_control_is_judged_like_any_arm(
    toy: Collection, make_kernel: Callable[..., Kernel], make_plan: Callable[..., SamplingPlan]
) -> None:
    op, split = toy.ops["scale"], toy.kernels["scale/split@1"]
    timings = measure_case(
        "suite:case", op, op.Params(size=SIZE), arm_specs([split], make_kernel("planted", later_idle())), device=CPU, plan=make_plan(),
        timer=HostTimer(), seed=5, outputs=TimedOutputs(op, split=split, others=lambda kernel: toy.kernels),
    )  # fmt: skip
    assert set(timings.wrong) == {KERNEL, CONTROL}


def test_a_wait_longer_than_the_call_is_not_of_the_call() -> None:
    """One of a CPU calibration's samples was -3357 ns."""
    assert without_waiting(4_000_000, 3_000_000) == 1_000_000
    assert without_waiting(5_000, 8_357) == 5_000
    assert without_waiting(5_000, -20) == 5_000
