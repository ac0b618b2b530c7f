"""Replicates of balanced rounds on the toy op: what precedes a timed call, what is repeated, what a seed decides."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fusebench.accuracy import memory
from fusebench.accuracy.memory import guarded_memory
from fusebench.errors import TimerError
from fusebench.registry import Collection, Kernel
from fusebench.schema import CacheState, SamplingPlan
from fusebench.timing import measure, placement, preparation
from fusebench.timing.case_timings import BETWEEN, CaseTimings
from fusebench.timing.measure import measure_case
from fusebench.timing.placement import CONTROL, COPY, STREAM, arm_specs
from fusebench.timing.replicate import RETRIES
from fusebench.timing.timers.host import HostTimer

SIZE = 16
Timed = Callable[..., CaseTimings]


class Calls:
    """What a kernel saw: (arm, address, values) of each of its calls."""

    def __init__(self) -> None:
        self.arm = ""
        self.seen: list[tuple[str, int, torch.Tensor]] = []
        self.buffers: dict[str, torch.Tensor] = {}

    def announce(self, name: str) -> None:
        self.arm = name

    def kernel(self, x: torch.Tensor, *, factor: float) -> None:
        self.seen.append((self.arm, x.data_ptr(), x.clone()))
        self.buffers[self.arm] = x
        x.mul_(factor)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def timed(
    toy: Collection,
    make_kernel: Callable[..., Kernel],
    make_plan: Callable[..., SamplingPlan],
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> Timed:
    """`timed(timer, …)`: measure a spying in-place baseline and one other kernel, six arms in all."""
    monkeypatch.setattr(placement, "PADDING_LIMIT", 4096)
    baseline, other = make_kernel("baseline", calls.kernel), make_kernel("other", calls.kernel)

    def run(timer: Any, plan: SamplingPlan | None = None, seed: int = 3, **options: Any) -> CaseTimings:
        op = toy.ops["scale"]
        return measure_case(
            "suite:case", op, op.Params(size=SIZE), arm_specs([baseline, other], baseline), device=torch.device("cpu"),
            plan=plan or make_plan(), timer=timer, seed=seed, on_call=calls.announce, **options,
        )  # fmt: skip

    return run


ARMS = {COPY, STREAM, CONTROL, "scale/baseline@1", "scale/other@1"}


def test_every_round_holds_every_arm_once_and_every_call_is_a_sample(timed: Timed, make_plan: Callable[..., SamplingPlan]) -> None:
    timings = timed(HostTimer(), make_plan(replicates=3, rounds=5))
    rounds: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for sample in timings.samples:
        assert (sample.case, sample.kernels) == ("suite:case", 0)
        assert sample.span_ns > 0
        rounds[sample.replicate, sample.round][sample.position] = sample.arm
    assert set(rounds) == {(replicate, number) for replicate in range(3) for number in range(5)}
    assert all(set(order) == set(range(5)) and set(order.values()) == ARMS for order in rounds.values())


def test_inputs_are_restored_before_every_call(timed: Timed, calls: Calls) -> None:
    timed(HostTimer())
    first = calls.seen[0][2]
    assert len(calls.seen) > 20
    assert all(torch.equal(values, first) for _, _, values in calls.seen)


def test_a_timer_that_skips_the_preparation_would_show(timed: Timed, calls: Calls, scripted_timer: type) -> None:
    """The planted defect of the test above: without `restore` an in-place kernel doubles its inputs again and again."""

    class Careless(scripted_timer):  # type: ignore[misc]
        def time_calls(self, arms: Any, prepare: Any) -> Any:
            return super().time_calls(arms, lambda arm: None)

    timed(Careless())
    assert not all(torch.equal(values, calls.seen[0][2]) for _, _, values in calls.seen)


def test_the_cache_is_emptied_after_the_inputs_are_restored_and_nothing_of_it_is_timed(
    timed: Timed, calls: Calls, scripted_timer: type, make_plan: Callable[..., SamplingPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = scripted_timer()

    def evict() -> None:
        buffer = calls.buffers.get(calls.arm)
        assert buffer is None or torch.equal(buffer, calls.seen[0][2]), "evicted before its inputs were restored"
        timer.log.append("evict")

    monkeypatch.setattr(preparation, "make_evictor", lambda device: evict)
    timed(timer, make_plan(cache=CacheState.COLD))
    steps = [line.split()[0] for line in timer.log]
    assert steps == ["prepare", "evict", "begin", "end"] * (len(steps) // 4)
    assert len(steps) == 4 * 2 * 4 * len(ARMS)


def test_warm_means_that_nothing_is_evicted(timed: Timed, scripted_timer: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "make_evictor", lambda device: pytest.fail("an evictor was made for a warm plan"))
    assert timed(scripted_timer()).samples


def test_each_call_is_announced_by_the_name_of_its_arm(timed: Timed, calls: Calls, scripted_timer: type) -> None:
    """So that a kernel which takes its process down while it is timed can be named."""
    timer = scripted_timer()
    timed(timer)
    assert {arm for arm, _, _ in calls.seen} == {"scale/baseline@1", CONTROL, "scale/other@1"}
    in_order = [line.removeprefix("begin ") for line in timer.log if line.startswith("begin")]
    spied = [arm for arm in in_order if arm in ("scale/baseline@1", CONTROL, "scale/other@1")]
    warm_up = 2 * 3  # first calls, and one round of work to settle
    assert [arm for arm, _, _ in calls.seen[warm_up : warm_up + 12]] == spied[:12]


def test_first_calls_are_announced_once_before_anything_is_timed(timed: Timed, scripted_timer: type) -> None:
    timer = scripted_timer()
    timed(timer, on_arm=lambda name: timer.log.append(f"first {name}"))
    assert {line.removeprefix("first ") for line in timer.log[:5]} == ARMS
    assert sum(line.startswith("first") for line in timer.log) == 5


def test_a_replicate_that_lost_records_is_repeated_and_counted(timed: Timed, scripted_timer: type) -> None:
    timer = scripted_timer(lambda attempt, index: 2 if (attempt, index) == (0, 7) else 1)
    timings = timed(timer)
    assert timings.timer_retries == 1
    assert timer.attempts == 3, "one replicate twice, one once"
    assert {sample.kernels for sample in timings.samples} == {1}
    assert Counter(sample.replicate for sample in timings.samples) == {0: 20, 1: 20}


def test_a_replicate_whose_timer_raises_is_repeated_too(timed: Timed, scripted_timer: type) -> None:
    class Unlucky(scripted_timer):  # type: ignore[misc]
        def time_calls(self, arms: Any, prepare: Any) -> Any:
            timings = super().time_calls(arms, prepare)
            if self.attempts in (1, 2):
                raise TimerError("records were dropped")
            return timings

    assert timed(Unlucky()).timer_retries == 2


def test_records_that_are_lost_every_time_end_the_measurement(timed: Timed, scripted_timer: type) -> None:
    timer = scripted_timer(lambda attempt, index: index % 2)
    with pytest.raises(TimerError, match=r"arm '\S+' left 0 activities in \d+ calls, 1 activities in \d+ calls: records were dropped"):
        timed(timer)
    assert timer.attempts == RETRIES + 1


def test_a_deadline_ends_the_replicates_but_not_before_two(timed: Timed, make_plan: Callable[..., SamplingPlan]) -> None:
    plan = make_plan(replicates=5)
    cut = timed(HostTimer(), plan, deadline=time.monotonic() - 1)
    assert {sample.replicate for sample in cut.samples} == {0, 1}
    assert cut.cut_short
    whole = timed(HostTimer(), plan, deadline=time.monotonic() + 1000)
    assert {sample.replicate for sample in whole.samples} == {0, 1, 2, 3, 4}
    assert not whole.cut_short


def test_a_seed_reproduces_inputs_and_orders(timed: Timed, calls: Calls) -> None:
    def run(seed: int) -> tuple[list[tuple[int, int, int, str]], torch.Tensor]:
        calls.seen.clear()
        calls.buffers.clear()
        timings = timed(HostTimer(), seed=seed)
        return [(one.replicate, one.round, one.position, one.arm) for one in timings.samples], calls.seen[0][2]

    (orders, inputs), (orders_again, inputs_again), (other_orders, other_inputs) = run(3), run(3), run(4)
    assert orders == orders_again
    assert torch.equal(inputs, inputs_again)
    assert orders != other_orders
    assert not torch.equal(inputs, other_inputs)


def test_every_arm_has_buffers_of_its_own_and_every_replicate_a_new_placement(timed: Timed, calls: Calls) -> None:
    boundaries: list[int] = []
    timed(HostTimer(), on_replicate=lambda done, most: boundaries.append(len(calls.seen)))
    replicates = [calls.seen[: boundaries[0]], calls.seen[boundaries[0] :]]
    addresses = [{arm: {address for name, address, _ in seen if name == arm} for arm, _, _ in seen} for seen in replicates]
    for placed in addresses:
        assert len(placed) == 3
        assert all(len(found) == 1 for found in placed.values()), "within a replicate an arm stays where it is"
        assert len(set.union(*placed.values())) == 3, "no two arms share memory"
    assert set.union(*addresses[0].values()).isdisjoint(set.union(*addresses[1].values()))


def test_kernels_share_buffers_where_the_memory_does_not_hold_one_set_for_each(
    timed: Timed, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = 4 * SIZE
    room = 3 * measure.ARM_MULTIPLES * inputs / measure.MEMORY_SHARE
    monkeypatch.setattr(measure, "_memory_bytes", lambda device: room)
    timed(HostTimer())
    assert len({buffer.data_ptr() for buffer in calls.buffers.values()}) == 3, "it holds them"
    monkeypatch.setattr(measure, "_memory_bytes", lambda device: room - 1)
    calls.seen.clear()
    timed(HostTimer())
    assert len({buffer.data_ptr() for buffer in calls.buffers.values()}) == 1
    assert set(calls.buffers) == {CONTROL, "scale/baseline@1", "scale/other@1"}
    first = calls.seen[0][2]
    assert all(torch.equal(values, first) for _, _, values in calls.seen), "what one arm overwrote is restored for the next one"


def test_an_arm_has_its_last_buffers_until_all_arms_have_new_ones_as_the_estimate_of_memory_counts(
    toy: Collection, make_kernel: Callable[..., Kernel], make_plan: Callable[..., SamplingPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    op, given, most = toy.ops["scale"], list[StorageWeakRef](), 0

    def counted(*arguments: Any, **options: Any) -> tuple[torch.Tensor, int]:
        nonlocal most
        arena, start = guarded_memory(*arguments, **options)
        given.append(StorageWeakRef(arena.untyped_storage()))
        most = max(most, sum(not one.expired() for one in given))
        return arena, start

    monkeypatch.setattr(memory, "guarded_memory", counted)
    baseline = make_kernel("baseline", lambda x, *, factor: x.mul_(factor))
    measure_case(
        "suite:case", op, op.Params(size=SIZE), arm_specs([baseline], baseline), device=torch.device("cpu"),
        plan=make_plan(replicates=4), timer=HostTimer(), seed=3,
    )  # fmt: skip
    arms, kept_outputs = 2, 1  # the baseline and its control
    assert len(given) == 4 * arms
    assert most == (measure.ARM_MULTIPLES - kept_outputs) * arms


def test_arms_with_rows_of_their_own_share_none(toy: Collection, make_kernel: Callable[..., Kernel]) -> None:
    baseline = make_kernel("baseline", lambda x, *, factor: None)
    longer = placement.ArmSpec("longer", baseline, params=toy.ops["scale"].Params(size=2 * SIZE))
    specs = arm_specs([baseline], baseline, [longer])
    assert measure._fitting(specs, 2**30, 1) is specs


def test_the_control_is_the_baseline_again(
    toy: Collection, make_kernel: Callable[..., Kernel], make_plan: Callable[..., SamplingPlan]
) -> None:
    counts: Counter[str] = Counter()
    baseline = make_kernel("baseline", lambda x, *, factor: counts.update(["baseline"]))
    other = make_kernel("other", lambda x, *, factor: counts.update(["other"]))
    op = toy.ops["scale"]
    measure_case(
        "suite:case", op, op.Params(size=SIZE), arm_specs([other], baseline), device=torch.device("cpu"), plan=make_plan(),
        timer=HostTimer(), seed=1,
    )  # fmt: skip
    assert counts["baseline"] == 2 * counts["other"] > 0


def test_a_precision_is_not_this_process_to_reach(timed: Timed, make_plan: Callable[..., SamplingPlan]) -> None:
    """What it asks for is more processes: no number of replicates here is enough, and none too many."""
    for precision in (1e-9, 1.0):
        timings = timed(HostTimer(), msgspec.structs.replace(make_plan(replicates=3), precision=precision))
        assert {sample.replicate for sample in timings.samples} == {0, 1, 2}


def test_progress_counts_replicates(timed: Timed, make_plan: Callable[..., SamplingPlan]) -> None:
    heard: list[tuple[int, int]] = []
    timed(HostTimer(), make_plan(replicates=3), on_replicate=lambda done, most: heard.append((done, most)))
    assert [done for done, _ in heard] == [1, 2, 3]
    assert {most for _, most in heard} == {3}


def test_settling_works_on_every_arm_before_anything_is_timed(timed: Timed, calls: Calls, scripted_timer: type) -> None:
    timer, counted = scripted_timer(), []

    def settle(work: Callable[[], None]) -> None:
        before = len(calls.seen)
        for _ in range(3):
            work()
        counted.append((len(calls.seen) - before, len(timer.log)))

    timed(timer, settle=settle)
    assert counted == [(9, 0)], "three rounds of three spying arms, once, with nothing timed yet"


def test_the_phases_of_a_measurement_sum_up_to_what_it_took(timed: Timed) -> None:
    timings = timed(HostTimer())
    assert BETWEEN in timings.phases_s
    assert sum(timings.phases_s.values()) == pytest.approx(timings.seconds)
