"""Contracts: each bound fails just beyond itself and passes just within."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusebench.accuracy.contracts import bounds, floor_ulps, judge_bitwise, judge_close
from fusebench.accuracy.metrics import ErrorMetrics

SPLIT = ErrorMetrics(
    elements=4096,
    rows=64,
    error_squares=4096.0,
    max=4.0,
    channel_elements=4096,
    channel_squares=4096.0,
    channel_max=4.0,
    inexact=4096,
    outward_row_squares=4096.0,
)
"""RMS 1, maximum 4, no bias."""


def test_the_split_chain_passes_its_own_contract() -> None:
    assert judge_close(SPLIT, SPLIT, 1.0, 0.0) is None


@pytest.mark.parametrize(
    ("field", "within", "beyond", "name"),
    [
        ("error_squares", 1.49**2 * 4096, 1.51**2 * 4096, "RMS error"),
        ("max", 5.99, 6.01, "maximum error"),
        ("channel_squares", 1.49**2 * 4096, 1.51**2 * 4096, "RMS error relative to each channel's RMS"),
        ("channel_max", 5.99, 6.01, "maximum error relative to its channel's RMS"),
    ],
)
def test_errors_are_bounded_by_the_factor(field: str, within: float, beyond: float, name: str) -> None:
    assert judge_close(replace(SPLIT, **{field: within}), SPLIT, 1.5, 0.0) is None
    reason = judge_close(replace(SPLIT, **{field: beyond}), SPLIT, 1.5, 0.0)
    assert reason is not None
    assert reason.startswith(f"{name} ")
    assert "; " not in reason, "no other bound was broken"
    assert "1.5 x the split chain's" in reason


def test_mean_error_is_bounded_by_a_quarter_of_the_rms() -> None:
    assert judge_close(replace(SPLIT, error_sum=0.24 * 4096), SPLIT, 1.5, 0.0) is None
    reason = judge_close(replace(SPLIT, error_sum=-0.26 * 4096), SPLIT, 1.5, 0.0)
    assert reason == "biased: mean error -0.26 exceeds 0.25 (0.25 x the RMS error)"


def test_bias_is_not_judged_on_few_elements_or_rows() -> None:
    biased = replace(SPLIT, error_sum=-0.26 * 4096)
    assert judge_close(replace(biased, elements=4095), SPLIT, 2.0, 0.0) is None
    assert judge_close(replace(biased, rows=15), SPLIT, 2.0, 0.0) is None


def test_errors_toward_zero_are_a_bias_beyond_chance() -> None:
    inward = replace(SPLIT, outward=-2048.0, outward_row_squares=2048.0**2 / 64)
    reason = judge_close(inward, SPLIT, 1.5, 0.0)
    assert reason is not None
    assert "75 % of the errors are toward zero" in reason
    assert judge_close(inward, inward, 1.5, 0.0) is None, "the split chain has the same direction"
    scattered = replace(inward, outward_row_squares=64 * 64.0**2)
    assert judge_close(scattered, SPLIT, 1.5, 0.0) is None, "whole rows err in one direction: half of them is chance"


def test_nan_mismatches_fail_first() -> None:
    reason = judge_close(replace(SPLIT, mismatches=2, first_mismatches=("[0] is nan, expected 1",)), SPLIT, 1.5, 0.0)
    assert reason == "NaN or Inf where the reference has none, or the reverse, in 2 elements: [0] is nan, expected 1"


def test_an_exact_split_chain_allows_no_error_without_a_floor() -> None:
    exact = ErrorMetrics(elements=4096, rows=64)
    assert judge_close(exact, exact, 1.5, 0.0) is None
    reason = judge_close(replace(exact, error_squares=1e-20, max=1e-10), exact, 1.5, 0.0)
    assert reason is not None
    assert "exceeds 0" in reason


def test_the_float32_floor_is_two_units_and_covers_bias() -> None:
    exact = ErrorMetrics(elements=4096, rows=64, ulp_squares=4096.0, ulp_max=1.0)
    kernel = replace(exact, error_squares=1.9**2 * 4096, max=1.9, inexact=4096, outward=-4096.0, error_sum=0.4 * 4096)
    assert judge_close(kernel, exact, 1.5, floor_ulps(torch.float32)) is None
    reason = judge_close(replace(kernel, max=2.1), exact, 1.5, floor_ulps(torch.float32))
    assert reason is not None
    assert "2 units in the last place" in reason
    assert judge_close(replace(kernel, error_sum=0.6 * 4096), exact, 1.5, 2.0) is not None


def test_sixteen_bit_outputs_have_no_floor() -> None:
    assert floor_ulps(torch.bfloat16) == floor_ulps(torch.float16) == 0.0


def test_use_of_a_bound_is_infinite_where_none_is_allowed() -> None:
    exact = ErrorMetrics(elements=1)
    assert max(bound.use for bound in bounds(replace(exact, max=1e-9), exact, 1.5, 0.0)) == float("inf")
    assert max(bound.use for bound in bounds(SPLIT, SPLIT, 2.0, 0.0)) == 0.5


def test_bits_are_compared_element_for_element() -> None:
    one = torch.randn(6, 7, generator=torch.Generator().manual_seed(1)).bfloat16()
    other = one.clone()
    assert judge_bitwise(one, one.clone()).share == 1.0
    other.view(torch.int16)[4, 2] ^= 1
    agreement = judge_bitwise(other, one)
    assert agreement.equal == 41
    assert agreement.first_difference.startswith("[4, 2] is ")


def test_nans_are_equal_by_position_whatever_their_payload() -> None:
    payloads = torch.tensor([0x7FC0, 0x7FA5, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    others = torch.tensor([0x7FC1, -1, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    assert judge_bitwise(payloads, others).share == 1.0
    assert judge_bitwise(payloads, others.flip(0)).equal == 1


def test_minus_zero_is_not_zero() -> None:
    assert judge_bitwise(torch.tensor([0.0]), torch.tensor([-0.0])).equal == 0


def test_bits_of_different_shapes_or_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot compare bits"):
        judge_bitwise(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="cannot compare bits"):
        judge_bitwise(torch.zeros(2), torch.zeros(2).half())
