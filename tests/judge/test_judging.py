"""One case of one candidate: what is right passes, and every planted cheat that needs no process of its own is found."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusebench.judge import comparing
from fusebench.judge.channel.protocol import CaseOpened
from fusebench.judge.crosscheck import late_work
from fusebench.judge.evaluating import Evaluating
from fusebench.judge.exchange import BatchTimes, Exchange
from fusebench.judge.failures import CandidateError
from fusebench.judge.judging import capped
from fusebench.judge.patience import Limits
from fusebench.judge.phases import CALLS, COMPARE, COPIES, DRAW, FIRST_CALLS, INSPECT, Phases
from fusebench.judge.stages import COMPARED_CALLS, LEAST_OWN
from fusebench.registry import Op, load_collection
from fusebench.schema import Bitwise, Case, Close
from fusebench.schema.evaluation import EvaluationStatus, Stage
from judge.bench import judge_of, toy

Kernel = Callable[..., Any]
SHIPPED = load_collection([Path(__file__).parents[2] / "kernels"], kernels=False, entry_points=False)


def in_place(x: torch.Tensor, *, factor: float = 2.0) -> None:
    x.mul_(factor)


def fresh(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
    return x * factor


@pytest.mark.parametrize("kernel", [in_place, fresh, lambda x, *, factor=2.0: [x * factor], lambda x, *, factor=2.0: x.mul_(factor)])
def test_an_honest_kernel_passes(kernel: Kernel) -> None:
    judge, process = judge_of(kernel)
    judge.compare(20)
    assert judge.found.compared == judge.found.calls == 20
    addresses = {call.arenas[0].misalignment + call.tensors["x"].offset for batch in process.batches for call in batch.calls}
    assert len(addresses) > 5, "buffers lie at random places"
    assert {call.options["factor"] for batch in process.batches for call in batch.calls} == {2.0}


def test_calls_are_drawn_while_a_batch_is_waited_for() -> None:
    judge, _ = judge_of(in_place)
    comparison, before, names = judge._comparison, threading.active_count(), list[str]()
    draw = comparison._next
    comparison._next = lambda: names.append(threading.current_thread().name) or draw()  # type: ignore[assignment,func-returns-value]
    with comparison.drawing_ahead(5):
        for thread in threading.enumerate():
            if thread.name == "draws ahead":
                thread.join()
    assert (names, len(comparison._ahead), threading.active_count()) == (["draws ahead"] * 5, 5, before)
    assert {call.draw.params for call in comparison._ahead} == {judge._params}
    judge.compare(8)
    assert (judge.found.compared, len(comparison._ahead)) == (8, 0), "they are the first to be compared"
    assert DRAW in judge._limits.phases.seconds(), "those of this thread"
    with comparison.drawing_ahead(10**6):
        pass
    assert len(comparison._ahead) < 100, "the thread ends with the wait"


def test_on_a_gpu_the_other_calls_are_drawn_during_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that compiles."""
    judge, _ = judge_of(in_place)
    judge._device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
    asked = list[int]()
    monkeypatch.setattr(judge._comparison, "drawing_ahead", lambda count: asked.append(count) or nullcontext())
    judge.compare(40)
    assert len(asked) == 1
    assert 40 - 12 <= asked[0] < 40


def test_a_draw_that_fails_ahead_fails_the_case() -> None:
    judge, _ = judge_of(in_place)
    judge._comparison._next = lambda: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(ZeroDivisionError), judge._comparison.drawing_ahead(1):
        pass
    assert not [one for one in threading.enumerate() if one.name == "draws ahead"]


def test_the_gate_judges_through_the_same_batches() -> None:
    judge, process = judge_of(in_place, contract=Bitwise("scale/split@1"))
    judge.check()
    assert judge.found.accuracy is not None
    assert judge.found.accuracy.passed
    assert judge.found.accuracy.seed == 0
    assert judge.found.compared == sum(len(batch.calls) for batch in process.batches) > judge.found.accuracy.draws
    assert judge._limits.phases.seconds().keys() == {FIRST_CALLS, CALLS, COPIES, INSPECT, DRAW, COMPARE}


def test_outputs_are_taken_before_the_process_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the look for replaced functions counts nowhere: a candidate could compute then, and write into the reply."""
    judge, process = judge_of(fresh)
    inspect = process._caller.inspect

    def late(request: Any) -> Any:
        process._theirs.bytes_at(0, process._theirs.nbytes).zero_()
        return inspect(request)

    monkeypatch.setattr(process._caller, "inspect", late)
    judge.compare(20)


def test_errors_that_no_single_call_shows_are_judged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may be exact until the gate is through."""
    monkeypatch.setattr(comparing, "_NEAR_CONSTANT_SHARE", 0.0)  # single calls of that kind are held to half as much
    calls = 0

    def rough(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        nonlocal calls
        calls += 1
        signs = 2.0 * torch.randint(2, x.shape) - 1  # equal errors: no maximum gives it away
        return x * factor * (1 + signs * (5.5 * 2**-24 if calls > 20 else 0))

    judge, _ = judge_of(rough)
    judge.compare(20)
    with pytest.raises(CandidateError, match=r"calls together: RMS error .* exceeds") as caught:
        judge.compare(120)
    assert caught.value.status is EvaluationStatus.WRONG


def test_magnitudes_between_those_of_an_op_are_powers_of_ten() -> None:
    assert comparing.between((1.0, 1e-3, 1e3)) == (1e-2, 1e-1, 1e1, 1e2)
    assert comparing.between((1.0,)) == ()
    assert comparing.between((1.0, 0.5)) == ()


def test_a_kernel_that_is_wrong_between_the_magnitudes_of_an_op_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Op, "magnitudes", lambda self, params: (1.0, 1e-3, 1e14))

    def wrong_inside(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        size = x.abs()
        return torch.where((size > 1e5) & (size < 1e11), 0.0, x * factor)

    judge, _ = judge_of(wrong_inside)
    with pytest.raises(CandidateError, match="at input magnitude") as caught:
        judge.compare(COMPARED_CALLS)
    assert caught.value.status is EvaluationStatus.WRONG


def nothing(x: torch.Tensor, *, factor: float = 2.0) -> None:
    """Does nothing."""


def cached() -> Kernel:
    kept: dict[int, torch.Tensor] = {}

    def kernel(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        return kept.setdefault(x.numel(), x * factor).clone()

    return kernel


def same_memory() -> Kernel:
    kept: dict[int, torch.Tensor] = {}

    def kernel(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        return torch.mul(x, factor, out=kept.setdefault(x.numel(), torch.empty_like(x)))

    return kernel


def slices(step: float) -> Kernel:
    """Outputs are slices of one buffer, each `step` of its length behind the one before."""
    pool, used = torch.empty(1 << 22), 0

    def kernel(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        nonlocal used
        out = pool[used : used + x.numel()]
        used += int(step * x.numel())
        return torch.mul(x, factor, out=out)

    return kernel


def late(x: torch.Tensor, *, factor: float = 2.0) -> None:
    def work() -> None:
        time.sleep(0.02)
        x.mul_(factor)

    threading.Thread(target=work, daemon=True).start()


def beyond(x: torch.Tensor, *, factor: float = 2.0) -> None:
    x.mul_(factor).as_strided((x.numel() + 1,), (1,))[-1] = 3.0


class Lazy(torch.Tensor):
    """A tensor that might compute when it is read."""


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (nothing, "RMS error|NaN or Inf"),
        (cached(), "RMS error|NaN or Inf"),
        (same_memory(), "memory that an earlier call returned"),
        (slices(0.5), "memory that an earlier call returned"),
        (late, "RMS error|NaN or Inf"),
        (beyond, "guard after buffer 'x'"),
        (lambda x, *, factor=2.0: (x * factor).as_subclass(Lazy), "Lazy, expected plain torch tensors"),
        (lambda x, *, factor=2.0: torch.nn.Parameter(x * factor), "Parameter, expected plain torch tensors"),
        (lambda x, *, factor=2.0: (x * factor).to_sparse(), "layout torch.sparse_coo"),
        (lambda x, *, factor=2.0: (x * factor).to("meta"), "on meta"),
        (lambda x, *, factor=2.0: torch._neg_view(x * -factor), "neg=True"),
        (lambda x, *, factor=2.0: (x * factor)[:-1], "has shape (4095,), expected (4096,)"),
        (lambda x, *, factor=2.0: (x * factor).double(), "has dtype torch.float64"),
        (lambda x, *, factor=2.0: (x * factor).numpy(), "returned ndarray"),
        (lambda x, *, factor=2.0: torch.where(x == x.max(), torch.nan, x * factor), "NaN or Inf"),
    ],
)
def test_a_cheat_is_wrong(kernel: Kernel, words: str) -> None:
    judge, _ = judge_of(kernel)
    with pytest.raises(CandidateError, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        judge.compare(40)
    assert caught.value.status is EvaluationStatus.WRONG


def test_a_kernel_that_trusts_the_alignment_of_whole_buffers_is_wrong() -> None:
    """Planted: it reads from the last multiple of 32 bytes on.  Callers pass parts of larger buffers, too."""

    def aligned(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        beyond = x.data_ptr() % 32 // x.element_size()
        return x.as_strided(x.shape, x.stride(), x.storage_offset() - beyond) * factor

    judge, _ = judge_of(aligned)
    with pytest.raises(CandidateError) as caught:
        judge.compare(COMPARED_CALLS)
    assert caught.value.status is EvaluationStatus.WRONG


def test_buffers_lie_at_multiples_of_16_bytes_and_of_256_where_they_are_timed() -> None:
    judge, _ = judge_of(in_place)

    def addresses(calls: list[Any]) -> list[int]:
        return [value.data_ptr() for call in calls for value in call.arguments.values() if isinstance(value, torch.Tensor)]

    compared, timed = addresses(judge._comparison.some(100)), addresses(judge._comparison.some(20, timed=True))
    assert {one % 16 for one in compared} == {one % 256 for one in timed} == {0}
    assert any(one % 32 for one in compared)


def test_outputs_that_are_neighbours_in_one_buffer_share_nothing() -> None:
    judge, _ = judge_of(slices(1.0))
    judge.compare(40)
    assert judge.found.compared == 40


def test_one_wrong_call_in_fifty_is_found() -> None:
    calls = 0

    def kernel(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x * (factor if calls % 50 else 2.1)

    judge, _ = judge_of(kernel)
    with pytest.raises(CandidateError, match="of those compared"):
        judge.compare(COMPARED_CALLS)
    assert 1 - 0.98**COMPARED_CALLS >= 0.99


def test_bits_are_compared_in_every_call() -> None:
    judge, _ = judge_of(lambda x, *, factor=2.0: torch.nextafter(x * factor, x), contract=Bitwise("scale/split@1"))
    with pytest.raises(CandidateError, match=r"is not bit for bit that of scale/split@1"):
        judge.compare(5)


def test_a_thread_that_goes_on_computing_is_noticed() -> None:
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            pass

    threads: list[threading.Thread] = []

    def kernel(x: torch.Tensor, *, factor: float = 2.0) -> None:
        if not threads:
            threads.append(threading.Thread(target=burn, daemon=True))
            threads[0].start()
        x.mul_(factor)

    judge, _ = judge_of(kernel)
    honest, _ = judge_of(in_place)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 10)  # the thread gives way to the judge sooner, and computes as long in between
    try:
        judge.compare(30)
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        threads[0].join()
    honest.compare(30)
    assert "other threads computed" in late_work(judge.found.late_shares)
    assert late_work(honest.found.late_shares) == ""


def test_replaced_clocks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, _ = judge_of(in_place)
    judge.compare(1)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    with pytest.raises(CandidateError, match=r"time.perf_counter_ns was replaced") as caught:
        judge.compare(2)
    assert caught.value.status is EvaluationStatus.HACKED


def test_a_declared_contract_is_capped() -> None:
    collection = toy()
    op = collection.op("scale")
    params = op.parse_params({"size": 8})
    assert capped(Close(1e9), collection, op, params) == (Close(op.largest_factor), None)
    assert capped(Close(float("nan")), collection, op, params) == (Close(op.largest_factor), None)
    assert capped(Close(1.0), collection, op, params) == (Close(1.0), None)
    assert capped(Bitwise("scale/split@1"), collection, op, params)[1] is collection.kernel("scale/split@1")
    for contract, words in ((Bitwise("scale/mine@1"), "no kernel of the project"), (Bitwise("scale/fast@2"), "declines the case")):
        with pytest.raises(CandidateError, match=words) as caught:
            capped(contract, collection, op, op.parse_params({"size": 7}))
        assert caught.value.status is EvaluationStatus.INVALID


def test_the_baseline_is_timed_alone_before_the_candidate() -> None:
    judge, _ = judge_of(fresh)
    _, other = judge_of(in_place)
    judge._time_alone(Exchange(other, judge.expected))  # type: ignore[arg-type]
    assert len(judge.found.single.alone_us) == len(judge.found.several.alone_us) == 3, "of each kind, so that like is compared with like"
    assert min(judge.found.single.alone_us + judge.found.several.alone_us) > 0


def evaluating(cases: list[Case], *, seconds: float = 60.0) -> tuple[Any, list[Any]]:
    """An evaluation without processes, and the parameters that it compares; an RMS norm is wrong."""
    one: Any = Evaluating.__new__(Evaluating)
    one._device, one._op, one._rng, one._remarks, one._loaded = (
        torch.device("cpu"),
        SHIPPED.op("norm_scale_shift"),
        random.Random(0),
        [],
        None,
    )
    one._task = SimpleNamespace(cases=tuple(cases), stage=Stage.QUICK)
    one._began = time.monotonic()
    one._limits = Limits(one._began + seconds)
    one._phases = one._limits.phases
    one._layouts_s = 0.0
    asked: list[Any] = []
    one._asked = lambda params: asked.append(params) or CaseOpened(token="", declined=None)

    def compare(calls: int) -> None:
        if asked[-1].norm == "rms":
            raise CandidateError(EvaluationStatus.WRONG, "far off")

    one._judge_of = lambda opened, params: SimpleNamespace(compare=compare)
    return one, asked


def timed_batches(us_of_batch: Callable[[int], float]) -> Any:
    """What is measured of a candidate whose batch of so many calls takes so many microseconds, beside a baseline of 100 us a call."""
    judge, _ = judge_of(fresh)

    def times(us: float, count: int) -> BatchTimes:
        spans = (*[0] * (count - 1), int(1000 * us))
        return BatchTimes(spans, (us + 200) / 1e6, None, (us + 200) / 1e6, us / 1e6, 0.0, 0, 0.0, "", 0)

    judge._run = lambda calls: times(us_of_batch(len(calls)), len(calls))  # type: ignore[method-assign]
    judge._by_baseline = lambda baseline, calls: times(100.0 * len(calls), len(calls))  # type: ignore[method-assign]
    judge.time(None, 20, float("inf"))  # type: ignore[arg-type]
    return judge.found


def test_a_batch_that_is_computed_at_once_earns_no_more_than_a_call_alone() -> None:
    """Planted: one launch computes the calls of a whole batch, in the time of one."""
    one, _ = evaluating([])
    found = timed_batches(lambda count: 90.0)
    assert len(found.single.pairs) == len(found.several.pairs) == 10
    judged = one._judged(found, 1.0)
    assert judged["speedup"].value == pytest.approx(100 / 90)
    assert judged["time_us"].value == pytest.approx(90.0)
    (remark,) = one._remarks
    assert remark.startswith("A call took 90.0 us alone in its batch")


def late_baseline(batches: int) -> Any:
    """A case whose baseline waits for the host in so many of its batches, and seems five times as slow there."""
    judge, _ = judge_of(fresh)
    asked = iter(range(1000))

    def by_baseline(baseline: Any, calls: Any) -> BatchTimes:
        late = next(asked) % 40 < batches
        us = 500.0 if late else 100.0
        return BatchTimes((int(1000 * us),) * len(calls), 1e-3, None, 1e-3, 0.0, 0.0, 0, 0.0, "", int(late))

    judge._run = lambda calls: BatchTimes((50_000,) * len(calls), 1e-3, None, 1e-3, 0.0, 0.0, 0, 0.0, "", 0)  # type: ignore[method-assign]
    judge._by_baseline = by_baseline  # type: ignore[method-assign]
    judge.time(None, 20, float("inf"))  # type: ignore[arg-type]
    return judge.found


def test_batches_in_which_the_baseline_waited_for_the_host_do_not_count() -> None:
    one, _ = evaluating([])
    found = late_baseline(10)
    assert found.single.late + found.several.late > 0
    assert one._judged(found, 1.0)["speedup"].value == pytest.approx(2.0)


def test_a_baseline_that_always_waits_for_the_host_accuses_nobody() -> None:
    one, _ = evaluating([])
    judged = one._judged(late_baseline(40), 1.0)
    assert judged["status"] is EvaluationStatus.UNFIT
    assert judged["reason"] == "the device waited for the host within the split chain's calls in 10 of 10 batches: the machine is too busy"


def test_an_honest_kernel_has_its_speedup_in_batches_of_any_length() -> None:
    one, _ = evaluating([])
    assert one._judged(timed_batches(lambda count: 50.0 * count), 1.0)["speedup"].value == pytest.approx(2.0)
    assert one._remarks == []


def test_a_candidate_does_not_choose_which_kind_of_batch_has_times() -> None:
    one, _ = evaluating([])
    found = timed_batches(lambda count: 10.0)
    found.single.pairs.clear()
    found.single.untimed[:] = ["the profiler lost records"] * 10
    judged = one._judged(found, 1.0)
    assert (judged["status"], judged["reason"]) == (
        EvaluationStatus.SUSPICIOUS,
        "0 of 10 batches could be timed: the profiler lost records",
    )


def case(name: str, **params: Any) -> Case:
    params = {"hidden": 64, "tokens": 4096, **params}
    return Case(name=name, suite="s", op="norm_scale_shift", params=params, weight=1.0, source="")


def in_another_layout(
    fails: CandidateError | None, *, declined: str | None = None, fails_everywhere: bool = False
) -> tuple[Any, list[Any]]:
    """An evaluation after a case was compared in another layout, where the candidate fails; and the strides of all compared calls."""
    one, asked = evaluating([])
    params = one._op.parse_params({"hidden": 64, "tokens": 64})
    one._layouts_left, one._process, strided = 1, SimpleNamespace(alive=True), list[bool]()
    one._asked = lambda params: asked.append(params) or CaseOpened(token="", declined=declined if params.strided else None)

    def compare(least: int) -> None:
        strided.append(asked[-1].strided)
        if fails is not None and (asked[-1].strided or fails_everywhere):
            raise fails

    judge = SimpleNamespace(compare=compare, found=SimpleNamespace(compared=20))
    one._judge_of = lambda opened, params: judge
    one._compare_other_layout(judge, params)
    assert asked[-1] == params, "the case is open again"
    return one, strided


def test_a_kernel_that_is_wrong_in_another_layout_is_found() -> None:
    """At two samples, so that a modulation has a second row."""
    with pytest.raises(CandidateError, match=r"at 2x\d+x64 bf16 strided: far off") as caught:
        in_another_layout(CandidateError(EvaluationStatus.WRONG, "far off"))
    assert caught.value.status is EvaluationStatus.WRONG


def test_a_kernel_that_declines_a_layout_is_not_compared_in_it() -> None:
    one, strided = in_another_layout(CandidateError(EvaluationStatus.WRONG, "far off"), declined="strided")
    assert (one._remarks, strided) == ([], [])
    assert one._layouts_s > 0


def test_a_kernel_that_raises_in_another_layout_has_declined_it() -> None:
    one, strided = in_another_layout(CandidateError(EvaluationStatus.CRASHED, "AssertionError: contiguous"))
    assert strided == [True, False], "it is right afterwards"
    assert one._remarks[0].endswith("strided: AssertionError: contiguous. A kernel declines such a case in its supports().")


def test_a_kernel_that_fails_ever_after_has_crashed() -> None:
    """A misaligned access ends the device's context."""
    with pytest.raises(CandidateError) as caught:
        in_another_layout(CandidateError(EvaluationStatus.CRASHED, "misaligned address"), fails_everywhere=True)
    assert caught.value.status is EvaluationStatus.CRASHED


def test_a_kernel_that_is_wrong_in_a_case_that_was_not_drawn_is_found() -> None:
    cases = [case("drawn"), case("longer", tokens=8192), case("half", dtype="float16")]
    one, asked = evaluating(cases)
    assert one._others(cases[:1]) == []
    assert [params.dtype for params in asked] == ["float16"], "a case that differs in tokens alone says nothing new"
    one, _ = evaluating([*cases, case("rms", norm="rms")])
    (failed,) = one._others(cases[:1])
    assert (failed.case, failed.status) == ("rms", EvaluationStatus.WRONG)
    assert "rms" in failed.reason


@pytest.mark.parametrize(("waited", "alive", "found"), [(60.0, False, 1), (1.0, False, 0), (60.0, True, 0)])
def test_a_call_that_lasts_until_the_budget_ends_hides_no_other_case(
    waited: float, alive: bool, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`alive`: it answered, and the judge's own time ended."""
    one, _ = evaluating([case("drawn"), case("half", dtype="float16")])
    now = time.monotonic()
    monkeypatch.setattr("fusebench.judge.evaluating.time", SimpleNamespace(monotonic=lambda: now))

    def compare(calls: int) -> None:
        nonlocal now
        now += waited
        raise CandidateError(EvaluationStatus.UNDECIDED, "the budget ended")

    one._judge_of, one._process = lambda opened, params: SimpleNamespace(compare=compare), SimpleNamespace(alive=alive)
    failed = one._others([case("drawn")])
    assert [(each.case, each.status) for each in failed] == [("half", EvaluationStatus.UNDECIDED)] * found


def test_other_cases_are_left_out_where_a_batch_takes_longer_than_they_may() -> None:
    one, asked = evaluating([case("drawn"), case("half", dtype="float16")])
    one._limits.longest_s = 60.0
    assert one._others([case("drawn")]) == []
    assert asked == []


def test_a_case_that_was_left_out_is_compared_at_a_small_size_as_often_as_it_is_due() -> None:
    one, _ = evaluating(cases := [case("drawn"), case("longer", tokens=8192)])
    one._drawn, due = 2, []
    one._judge_of = lambda opened, params: SimpleNamespace(compare=due.append)
    one._limits.longest_s = 60.0
    assert one._others(cases[:1], cases[1:]) == []
    assert due == [114]


def test_calls_at_a_cases_own_shape_end_with_its_time_but_for_a_few() -> None:
    judge, _ = judge_of(fresh)
    judge.compare(200, until=0.0)
    assert LEAST_OWN <= judge.found.compared < LEAST_OWN + 12


def test_phases_add_up_and_an_inner_one_is_not_its_outer_ones() -> None:
    phases = Phases()
    began = time.monotonic()
    with phases.timed("outer"):
        time.sleep(0.02)
        with phases.timed("inner"):
            time.sleep(0.03)
        with phases.timed("inner"):
            pass
    whole, found = time.monotonic() - began, phases.seconds()
    assert found["inner"] >= 0.029
    assert found["outer"] >= 0.019
    assert sum(found.values()) <= whole + 0.002


def test_an_interpreted_kernel_is_judged_on_as_many_cases_as_there_is_time_for() -> None:
    one, _ = evaluating([], seconds=60.0)
    one._began -= 30.0
    assert one._time_for_another(2)
    one._limits.deadline = time.monotonic() + 40.0
    assert not one._time_for_another(1)
