"""The gate is fooled by none of these kernels, and says what is wrong with each."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.accuracy.execution import place_at_random, run_guarded, run_plain
from fusebench.errors import KernelDeclarationError
from fusebench.schema import Bitwise, Role

Function = Callable[..., Any]


def fused(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return torch.empty_like(x).copy_(exact)


def one_element_wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    output = fused(x, weight)
    output[3, 5] = -2 * output[3, 5] + 0.1
    return output


def truncated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    bits = exact.view(torch.int32)
    return torch.where(exact.isfinite(), bits & -65536, bits).view(torch.float32).to(x.dtype)


def offset(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return (exact + exact.square().mean().sqrt().nan_to_num(0.0) * 2e-3).to(x.dtype)


def low_precision(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    squares = torch.zeros_like(x[:, :1])
    for channel in x.split(1, dim=-1):  # accumulates in the activation dtype
        squares += channel * channel
    return (x.float() * torch.rsqrt(squares.float() / x.shape[-1] + 1e-6) * weight.float()).to(x.dtype)


def tail_not_written(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(x)
    output[:, :-3] = fused(x, weight)[:, :-3]
    return output


def unwritten_workspace(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    workspace = torch.empty(x.shape[0], 1)
    workspace[1:] = 0.0
    return fused(x, weight) + workspace.to(x.dtype) * 1e-30


def writes_past_the_end(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(0.0)
    return fused(x, weight)


def writes_before_the_start(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    weight.as_strided((1,), (1,), weight.storage_offset() - 1).fill_(0.0)
    return fused(x, weight)


def reads_past_the_end(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    beyond = weight.as_strided((weight.numel(),), (1,), weight.storage_offset() + 1)
    return fused(x, weight) + 0 * beyond


def writes_to_a_read_only_input(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    output = fused(x, weight)
    weight[7] += 1.0
    return output


def drops_nan(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return fused(x.nan_to_num(0.0, float("inf"), float("-inf")), weight)


def turns_inf_to_nan(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isinf().any(-1, keepdim=True), torch.nan, fused(x, weight))


def drops_inf(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return fused(x.clamp(-3e38, 3e38), weight)


def divides_by_zero_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6 * wide.abs().amax(-1, keepdim=True).sign()).sqrt()
    return (exact * weight.float()).to(x.dtype)


def wrong_epsilon(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.float()).to(x.dtype)


def overflows_when_large(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide.square().mean(-1, keepdim=True)
    saturated = torch.where(mean.isfinite(), mean.clamp(max=1e6), mean)
    return (wide * torch.rsqrt(saturated + 1e-6) * weight.float()).to(x.dtype)


def wrong_dtype(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return fused(x, weight).float()


def wrong_shape(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return fused(x, weight)[:-1]


def too_many_outputs(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return fused(x, weight), x


def returns_nothing(x: torch.Tensor, weight: torch.Tensor) -> None:
    fused(x, weight)


def returns_its_input(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x[:]


def overwrites_and_returns_its_input(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.copy_(fused(x, weight))


def not_deterministic(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    output = fused(x, weight)
    output.view(torch.int16)[torch.randint(x.shape[0], ()), 1] ^= 1
    return output


DEFECTS: list[tuple[Function, str]] = [
    (one_element_wrong, "maximum error .*exceeds"),
    (truncated, r"100 % of the errors are toward zero"),
    (offset, "biased: mean error"),
    (low_precision, "RMS error .*exceeds.*1.5 x the split chain's"),
    # How many are found is the allocator's affair: the first call gets blocks that were poisoned and freed, whole or in part.
    (tail_not_written, r"output 'y': \d+ elements were never written \(poison found\), first \[\d+, 61\]"),
    # What lies in the workspace decides how it shows: as two calls that differ, as poison, or as a NaN that was there.
    (unwritten_workspace, "race, or unwritten memory was used|never written|NaN or Inf where the reference has none"),
    (writes_past_the_end, "guard after buffer 'x': 2 bytes changed, first 0 bytes past"),
    (writes_before_the_start, "guard before buffer 'weight': 2 bytes changed"),
    (reads_past_the_end, r"NaN or Inf where the reference has none.*\[0, 63\] is nan"),
    (writes_to_a_read_only_input, r"buffer 'weight': .*\(element 7\), where nothing may be written"),
    (drops_nan, "with rows of zeros, nan, inf, -inf, small planted: .*expected nan"),
    (turns_inf_to_nan, "planted: .* is nan, expected"),
    (drops_inf, "planted: .*expected nan"),
    (divides_by_zero_rows, "planted: .* is nan, expected 0"),
    (wrong_epsilon, "at input magnitude (1|0.001): .*exceeds"),
    (overflows_when_large, "at input magnitude 1000: .*exceeds"),
    (wrong_dtype, "output 'y' has dtype torch.float32, expected torch.bfloat16"),
    (wrong_shape, r"output 'y' has shape \(95, 64\), expected \(96, 64\)"),
    (too_many_outputs, "returned 2 tensors, expected 1: y"),
    (returns_nothing, "returned NoneType, expected one tensor per output"),
    (returns_its_input, "output 'y' is memory of input buffer 'x'"),
    (overwrites_and_returns_its_input, "buffer 'x': .*where nothing may be written"),
    (not_deterministic, "two calls on the same inputs differ"),
]


@pytest.mark.parametrize(("function", "reason"), DEFECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_kernel_fails_for_its_own_reason(toys: Any, function: Function, reason: str) -> None:
    for seed in range(5):
        accuracy = toys.check(toys.rms_scale, function, seed=seed)
        assert not accuracy.passed
        assert_matches(reason, accuracy.reason)


def test_every_element_that_was_never_written_is_counted_where_allocations_are_intercepted(toys: Any) -> None:
    params, device = toys.Params(), torch.device("cpu")
    op, generator = toys.rms_scale, torch.Generator().manual_seed(1)
    buffers = op.buffers(params, device=device, generator=generator)
    expected = run_plain(toys.rms_split, op, params, buffers)
    kernel = toys.kernel(op, "candidate", tail_not_written)
    found = run_guarded(kernel, op, params, place_at_random(buffers, device, random.Random(1)), expected=expected, intercept=True)
    assert found.faults == ["output 'y': 288 elements were never written (poison found), first [0, 61]"]


def assert_matches(pattern: str, text: str) -> None:
    __tracebackhide__ = True
    assert re.search(pattern, text), text


def test_the_loose_tolerance_used_elsewhere_would_pass_a_truncating_kernel(toys: Any) -> None:
    accuracy = toys.check(toys.rms_scale, truncated, seed=1)
    assert not accuracy.passed
    assert accuracy.within_loose_tolerance


def test_a_result_kept_from_an_earlier_call_is_caught(toys: Any) -> None:
    kept: dict[Any, torch.Tensor] = {}

    def caching(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return kept.setdefault(x.shape, fused(x, weight)).clone()

    assert_matches("exceeds|NaN or Inf where", toys.check(toys.rms_scale, caching, seed=1).reason)


def test_a_result_keyed_by_address_is_caught(toys: Any) -> None:
    kept: dict[Any, torch.Tensor] = {}

    def caching(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return kept.setdefault(x.data_ptr(), fused(x, weight)).clone()

    assert not toys.check(toys.rms_scale, caching, seed=1).passed


def test_an_output_buffer_kept_between_calls_is_caught(toys: Any) -> None:
    buffers: dict[Any, torch.Tensor] = {}

    def reusing(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return buffers.setdefault(x.shape, torch.zeros_like(x)).copy_(fused(x, weight))

    assert_matches("second call is the memory that the first call returned", toys.check(toys.rms_scale, reusing, seed=1).reason)


def packed(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> None:
    q.copy_(fused(q, weight))
    k.copy_(fused(k, weight))


def packed_writes_v(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> None:
    packed(q, k, weight)
    k.as_strided((1, 1), (1, 1), k.storage_offset() + 2 * k.shape[1] - 1).fill_(0.5)


def packed_writes_whole_rows(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> None:
    whole = q.as_strided((q.shape[0], 3, q.shape[1]), (q.stride(0), q.shape[1], 1))
    whole.copy_(fused(whole, weight))


def packed_last_row_missing(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> None:
    packed(q[:-1], k[:-1], weight)


def packed_swapped(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return fused(k, weight), fused(q, weight)


def packed_scribbles_then_returns(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    results = fused(q, weight), fused(k, weight)
    q[4, 2] = 0.0
    return results


def packed_wrong_dtype(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return fused(q, weight).float(), fused(k, weight)


def packed_broadcasts(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return fused(q, weight)[:1], fused(k, weight)


PACKED_DEFECTS: list[tuple[Function, str]] = [
    (packed_writes_v, r"buffer 'qkv': \d bytes? changed, first at byte \d+ \(element 191\)"),
    (packed_writes_whole_rows, r"buffer 'qkv': \d+ bytes changed, first at byte \d+ \(element 1[23]\d\)"),
    (packed_last_row_missing, "output '[qk]': .*(maximum error|expected nan)"),
    (packed_swapped, "output 'q': .*(exceeds|expected nan)"),
    (packed_scribbles_then_returns, r"buffer 'qkv': .*where nothing may be written"),
    (packed_wrong_dtype, "output 'q' has dtype torch.float32"),
    (packed_broadcasts, r"output 'q' has shape \(1, 64\)"),
]


@pytest.mark.parametrize(("function", "reason"), PACKED_DEFECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_in_place_kernel_fails_for_its_own_reason(toys: Any, function: Function, reason: str) -> None:
    for seed in range(5):
        accuracy = toys.check(toys.packed, function, seed=seed)
        assert not accuracy.passed
        assert_matches(reason, accuracy.reason)


def test_special_values_are_tried_on_a_single_row_too(toys: Any) -> None:
    for function, kinds in ((drops_nan, "nan"), (turns_inf_to_nan, "-?inf"), (divides_by_zero_rows, "zeros")):
        accuracy = toys.check(toys.rms_scale, function, toys.Params(rows=1), seed=3)
        assert_matches(f"with rows of {kinds} planted", accuracy.reason)


def test_one_unit_in_one_element_breaks_a_bitwise_contract(toys: Any) -> None:
    def off_by_one(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output = toys.split_norm(x, weight)
        output.view(torch.int16)[2, 9] += 1
        return output

    contract = Bitwise(to="rms_scale/split@1")
    accuracy = toys.check(toys.rms_scale, off_by_one, contract=contract, seed=1)
    assert not accuracy.passed
    assert_matches(r"not bit for bit that of rms_scale/split@1: 1 of 6144 elements differ, first \[2, 9\]", accuracy.reason)
    assert toys.check(toys.rms_scale, off_by_one, seed=1).passed, "the close contract does not mind"


def test_a_bitwise_target_that_is_not_loaded_is_refused(toys: Any) -> None:
    with pytest.raises(KernelDeclarationError, match=r"other@3.*loaded: none"):
        toys.check(toys.rms_scale, fused, contract=Bitwise(to="rms_scale/other@3"))


def test_a_bitwise_target_is_looked_up_among_the_others(toys: Any) -> None:
    target = toys.kernel(toys.rms_scale, "target", fused)
    contract = Bitwise(to=str(target.id))
    assert toys.check(toys.rms_scale, fused, contract=contract, others={str(target.id): target}).passed
    assert "not bit for bit" in toys.check(toys.rms_scale, toys.split_norm, contract=contract, others={str(target.id): target}).reason


def test_an_op_that_copies_its_buffers_is_refused(toys: Any) -> None:
    class Copying(type(toys.rms_scale)):  # type: ignore[misc]
        def arguments(self, params: Any, buffers: Any) -> Any:
            return {"x": buffers["x"].clone(), "weight": buffers["weight"]}

    op = Copying()
    with pytest.raises(KernelDeclarationError, match=r"arguments\(\) must make views of its buffers; x has memory of its own"):
        toys.check(op, fused, split=toys.rms_split)


def test_what_a_kernel_raises_reaches_the_caller(toys: Any) -> None:
    def broken(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        toys.check(toys.rms_scale, broken)


def test_an_error_that_hides_in_the_interpreters_fewer_rows_is_not_claimed_to_be_checked(toys: Any) -> None:
    def wrong_in_row_90(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output = fused(x, weight)
        output[90:] = 0.0
        return output

    assert not toys.check(toys.rms_scale, wrong_in_row_90).passed
    shrunk = toys.check(toys.rms_scale, wrong_in_row_90, rows=32)
    assert shrunk.passed
    assert shrunk.tokens == 32, "the result says on how many tokens it rests"


def test_compiled_kernels_are_checked_as_compiled(toys: Any) -> None:
    ran = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        def compiled(*args: torch.Tensor) -> Any:
            ran.append(1)
            return graph(*args)

        return compiled

    function = torch.compile(toys.split_norm, backend=backend, fullgraph=True, dynamic=False)
    for role in (Role.COMPILED, Role.FUSED):
        ran.clear()
        accuracy = toys.check(toys.rms_scale, function, role=role)
        assert accuracy.passed
        assert len(ran) == 2 * accuracy.draws


@pytest.mark.parametrize(
    ("function", "errors_only"),
    [(fused, False), (truncated, True), (low_precision, True), (drops_nan, True), (tail_not_written, False), (writes_past_the_end, False)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_failure_by_errors_or_planted_values_alone_is_told_from_every_other(toys: Any, function: Function, errors_only: bool) -> None:
    accuracy = toys.check(toys.rms_scale, function)
    assert (accuracy.passed, accuracy.errors_only) == (function is fused, errors_only), accuracy.reason


def test_a_kernel_that_loses_planted_values_is_judged_by_its_finite_ones_too(toys: Any) -> None:
    def drops_nan_and_is_wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return drops_nan(x, weight) * 1.25

    right, wrong = toys.check(toys.rms_scale, drops_nan), toys.check(toys.rms_scale, drops_nan_and_is_wrong)
    assert (right.passed, right.within_loose_tolerance) == (False, True)
    assert_matches("planted: .*expected nan", right.reason)
    assert (wrong.passed, wrong.within_loose_tolerance) == (False, False)
    assert "planted" not in wrong.reason, "the error in every element is worse"
