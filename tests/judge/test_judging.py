"""One case of one candidate: what is right passes, and every planted cheat that needs no process of its own is found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusebench.judge import comparing
from fusebench.judge.candidate import calling
from fusebench.judge.crosscheck import late_work
from fusebench.judge.failures import CandidateError
from fusebench.judge.judging import capped
from fusebench.judge.phases import CALLS, COMPARE, COPIES, DRAW, FIRST_CALLS, INSPECT
from fusebench.judge.stages import COMPARED_CALLS, LEAST_OWN
from fusebench.registry import Op, load_collection
from fusebench.schema import Bitwise, Close
from fusebench.schema.evaluation import EvaluationStatus
from judge.bench import CPU, KERNELS, SHIPPED, fresh, in_place, judge_of, judge_of_op, kernel_of, toy

Kernel = Callable[..., Any]


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


def two_passes(wide: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    return (wide - mean).square().mean(-1, keepdim=True)


def normed(variance: Kernel) -> Kernel:
    def kernel(x: torch.Tensor, weight: None, bias: None, scale: torch.Tensor, shift: Any, eps: float, norm: str) -> Any:  # noqa: PLR0917
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        return ((wide - mean) * torch.rsqrt(variance(wide, mean) + eps) * (1 + scale) + shift).to(x.dtype)

    return kernel


@pytest.fixture
def nearly_constant(monkeypatch: pytest.MonkeyPatch) -> Op:
    """The op of those norms, all of whose calls have rows that are nearly constant, of usual size."""
    monkeypatch.setattr(Op, "magnitudes", lambda self, params: (1.0,))
    for share, value in (("_NEAR_CONSTANT_SHARE", 1.0), ("_SPECIAL_SHARE", 0.0), ("_PLAIN_SHARE", 0.0), ("_BETWEEN_SHARE", 0.0)):
        monkeypatch.setattr(comparing, share, value)
    return SHIPPED.op("norm_scale_shift")


@pytest.mark.parametrize(("one_pass", "found"), [(False, ""), (True, "rows nearly constant: RMS error")])
def test_nearly_constant_rows_find_a_variance_of_one_pass(nearly_constant: Op, one_pass: bool, found: str) -> None:
    """Planted: E[x^2] - mean^2 at 256 channels, where it errs least; a norm in two passes stays below the bound in forty such calls."""
    right = normed(two_passes)
    mine = normed(lambda wide, mean: (wide.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)) if one_pass else right
    judge, _ = judge_of_op(mine, nearly_constant, {"hidden": 256, "tokens": 64}, split=kernel_of(right, nearly_constant, "split"))
    with pytest.raises(CandidateError, match=found) if found else nullcontext():
        judge.compare(8 if found else 40)


@pytest.mark.parametrize(("alike", "found"), [(True, ""), (False, "rows nearly constant: RMS error")])
def test_a_call_in_which_the_split_chain_errs_as_much_accuses_nobody(nearly_constant: Op, alike: bool, found: str) -> None:
    """Planted: errors eight times as large where a draw's values say so, as a gate at 1e14 makes them."""
    right = normed(two_passes)

    def now_and_then(x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        output = right(x, *rest, **options)
        seldom = int(x.flatten()[0].view(torch.int16)) % 7 == 0
        return output * (1 + 8 * 2**-9) if seldom else output

    split = kernel_of(now_and_then if alike else right, nearly_constant, "split")
    judge, _ = judge_of_op(now_and_then, nearly_constant, {"hidden": 256, "tokens": 64}, split=split)
    with pytest.raises(CandidateError, match=found) if found else nullcontext():
        judge.compare(80)


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


def test_a_thread_that_goes_on_computing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    computed_ns = 0

    def burn() -> None:
        nonlocal computed_ns
        while not stop.is_set():
            computed_ns = time.thread_time_ns()

    def until_it_computed(_seconds: float) -> None:
        """What is watched lasts until the thread has had a core, however busy the machine is."""
        enough = computed_ns + 5_000_000
        while threads and not stop.is_set() and computed_ns < enough:
            time.sleep(0.001)

    threads: list[threading.Thread] = []

    def kernel(x: torch.Tensor, *, factor: float = 2.0) -> None:
        if not threads:
            threads.append(threading.Thread(target=burn, daemon=True))
            threads[0].start()
        x.mul_(factor)

    monkeypatch.setattr(calling, "_sleep", until_it_computed)
    judge, _ = judge_of(kernel)
    try:
        judge.compare(60)
    finally:
        stop.set()
        threads[0].join()
    monkeypatch.undo()
    honest, _ = judge_of(in_place)
    honest.compare(60)
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
    assert capped(Close(1e9), collection, op, params, CPU) == (Close(op.largest_factor), None)
    assert capped(Close(float("nan")), collection, op, params, CPU) == (Close(op.largest_factor), None)
    assert capped(Close(1.0), collection, op, params, CPU) == (Close(1.0), None)
    assert capped(Bitwise("scale/split@1"), collection, op, params, CPU)[1] is collection.kernel("scale/split@1")
    for contract, words in ((Bitwise("scale/mine@1"), "no kernel of the project"), (Bitwise("scale/fast@2"), "declines the case")):
        with pytest.raises(CandidateError, match=words) as caught:
            capped(contract, collection, op, op.parse_params({"size": 7}), CPU)
        assert caught.value.status is EvaluationStatus.INVALID


def test_a_contract_to_equal_a_kernel_that_cannot_run_here_is_invalid() -> None:
    """Planted defect: the judge called the other kernel, and the command ended with its error."""
    collection = load_collection([KERNELS], entry_points=False, operators=False)
    op = collection.op("norm_tanh_mul_add")
    with pytest.raises(CandidateError, match="fused_cuda@1 bit for bit, which cannot run here: ") as caught:
        capped(Bitwise("norm_tanh_mul_add/fused_cuda@1"), collection, op, op.parse_params({"hidden": 64, "tokens": 8}), CPU)
    assert caught.value.status is EvaluationStatus.INVALID


def test_calls_at_a_cases_own_shape_end_with_its_time_but_for_a_few() -> None:
    judge, _ = judge_of(fresh)
    judge.compare(200, until=0.0)
    assert LEAST_OWN <= judge.found.compared < LEAST_OWN + 12
