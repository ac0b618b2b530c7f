"""Error metrics: right sums, right positions, and the same answer however the tensor is cut into pieces."""

from __future__ import annotations

import math

import pytest
import torch

from fusebench.accuracy import comparison
from fusebench.accuracy.comparison import compare
from fusebench.accuracy.metrics import ErrorMetrics, merge, rms_spread

NAN, INF = float("nan"), float("inf")
SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(8)[:, None].repeat(1, 2)
"""Sixteen rows, each unlike the one before."""


def test_rms_max_and_signed_mean() -> None:
    reference = torch.tensor([[1.0, 2.0], [-4.0, 8.0]], dtype=torch.float64)
    found = compare(torch.tensor([[1.5, 2.0], [-4.0, 7.0]]), reference)
    assert (found.elements, found.rows, found.max) == (4, 2, 1.0)
    assert found.rms == pytest.approx(math.sqrt((0.25 + 1.0) / 4))
    assert found.mean == pytest.approx(-0.125)
    assert (found.inexact, found.outward) == (2, 0)


def test_errors_are_taken_in_float64() -> None:
    reference = torch.tensor([[1.0 + 2.0**-40]], dtype=torch.float64)
    assert compare(torch.tensor([[1.0]]), reference).max == 2.0**-40


def test_chunks_give_the_sums_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    reference = torch.randn(40, 3, 16, dtype=torch.float64, generator=generator)
    output = reference.float().bfloat16()
    output[7, 1, 2] = NAN
    whole = compare(output, reference)
    monkeypatch.setitem(comparison._CHUNK, "cpu", 50)
    parts = compare(output, reference)
    for name in ("elements", "rows", "max", "inexact", "outward", "mismatches", "first_mismatches"):
        assert getattr(parts, name) == getattr(whole, name)
    for name in ("rms", "mean", "channel_rms", "rounding_channel_rms", "channel_max", "outward_bias_sd"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-12)
    assert whole.first_mismatches == (f"[7, 1, 2] is nan, expected {float(reference[7, 1, 2].bfloat16()):g}",)


def test_merged_draws_equal_one_large_draw() -> None:
    reference = torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    output = reference.float().bfloat16()
    pooled = merge([compare(output[:32], reference[:32]), compare(output[32:], reference[32:])])
    whole = compare(output, reference)
    assert (pooled.elements, pooled.max, pooled.outward) == (whole.elements, whole.max, whole.outward)
    assert pooled.rms == pytest.approx(whole.rms)
    assert pooled.mean == pytest.approx(whole.mean)
    assert merge([]) == ErrorMetrics()


@pytest.mark.parametrize(("got", "due"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, INF), (-INF, INF), (NAN, INF), (INF, NAN)], ids=str)
def test_each_wrong_kind_is_a_mismatch_and_no_error(got: float, due: float) -> None:
    found = compare(torch.tensor([[got, 1.0]]), torch.tensor([[due, 1.0]], dtype=torch.float64))
    assert found.mismatches == 1
    assert found.first_mismatches == (f"[0, 0] is {got:g}, expected {due:g}",)
    assert (found.elements, found.max) == (1, 0.0)


def test_equal_kinds_are_no_mismatch() -> None:
    values = torch.tensor([[NAN, INF, -INF, 2.0]])
    found = compare(values, values.double())
    assert (found.mismatches, found.elements, found.max) == (0, 1, 0.0)


def test_overflow_of_the_output_dtype_is_expected_to_be_inf() -> None:
    reference = torch.tensor([[1e6, -1e6, 1.0]], dtype=torch.float64)
    assert compare(torch.tensor([[INF, -INF, 1.0]]).half(), reference).mismatches == 0
    assert compare(torch.tensor([[INF, INF, 1.0]]).half(), reference).mismatches == 1
    saturated = compare(torch.tensor([[65504.0, -INF, 1.0]]).half(), reference)
    assert saturated.mismatches == 1


def test_where_one_rounding_decides_between_finite_and_inf_both_are_right() -> None:
    reference = torch.tensor([[65510.0, 1.0]], dtype=torch.float64)
    for value in (65504.0, INF):
        assert compare(torch.tensor([[value, 1.0]]).half(), reference).mismatches == 0
    assert compare(torch.tensor([[NAN, 1.0]]).half(), reference).mismatches == 1


def test_a_kind_shared_with_the_split_chain_is_tolerated() -> None:
    reference, output = torch.tensor([[2.0, 1.0]], dtype=torch.float64), torch.tensor([[INF, 1.0]])
    assert compare(output, reference, tolerated=torch.tensor([[INF, 1.0]])).mismatches == 0
    assert compare(output, reference, tolerated=torch.tensor([[NAN, 1.0]])).mismatches == 1


def test_the_float32_unit_is_that_of_nextafter() -> None:
    values = torch.tensor([[1.0, 1.5, 2.0, 3e-39, 0.0, 1e30]])
    above = torch.nextafter(values, torch.tensor(INF))
    units = (above.double() - values.double()).flatten().tolist()
    found = [compare(values[:, [index]], values[:, [index]].double()).ulp_max for index in range(6)]
    assert found == units
    assert compare(values.bfloat16(), values.double()).ulp_max == 0.0


def test_errors_are_scaled_by_their_channel() -> None:
    reference = SIGNS.clone()
    reference[:, 1] *= 100.0
    output = reference.float()
    output[3, 0] += 0.5
    output[4, 1] += 1.0
    found = compare(output, reference)
    assert (found.max, found.channel_max) == (1.0, 0.5)
    assert compare(output[:15], reference[:15]).channel_max == 0.0, "too few rows to know a channel's size"


def test_errors_of_few_rows_are_scaled_by_their_own_value_or_their_rows_median() -> None:
    reference = torch.tensor([[1.0, 2.0, 100.0, 0.1, 2.0], [0.0, 0.0, 0.0, 0.0, 4.0]], dtype=torch.float64)
    output = reference.float() + torch.tensor([[0.2, 0.0, 10.0, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0, 0.4]])
    found = compare(output, reference)
    # Row 1: its median is 2; 0.2 / 2, 10 / 100, 0.2 / 2.  Row 2: a value of its own, and zeros without an error.
    assert found.relative_elements == 10
    assert found.relative_rms == pytest.approx(math.sqrt(4 * 0.1**2 / 10), rel=1e-5)
    many = compare(output.repeat(8, 1), reference.repeat(8, 1))
    assert (many.relative_elements, many.relative_rms) == (0, 0.0), "there channels are known"
    assert many.channel_elements == 80


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_what_rounding_alone_makes_is_told_in_the_units_of_the_errors(rows: int, dtype: torch.dtype) -> None:
    reference = torch.randn(rows, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
    reference[0, 0] = NAN
    best = compare(reference.to(dtype), reference)
    rounding = {2: best.rounding_relative_rms, 40: best.rounding_channel_rms}
    assert rounding[rows] > 0
    assert rounding == {2: best.relative_rms, 40: best.channel_rms}
    worse = compare(reference.to(dtype) * 1.01, reference)
    assert {2: worse.rounding_relative_rms, 40: worse.rounding_channel_rms} == rounding, "of the exact result, whatever the output"
    assert max(worse.relative_rms, worse.channel_rms) > 1.5 * rounding[rows]


def test_values_beyond_the_dtype_have_no_rounding() -> None:
    reference = torch.full((16, 2), 65519.0, dtype=torch.float64)
    reference[:, 1] = 1e9
    found = compare(
        torch.full((16, 2), 65504.0, dtype=torch.float16), reference, tolerated=torch.full((16, 2), 65504.0, dtype=torch.float16)
    )
    assert math.isfinite(found.rounding_channel_rms)
    exact = compare(torch.ones(16, 2), torch.ones(16, 2, dtype=torch.float64))
    assert (exact.rounding_channel_rms, exact.channel_rms) == (0.0, 0.0)


def test_units_in_the_last_place_of_few_rows_are_scaled_as_their_errors_are() -> None:
    reference = torch.tensor([[1.0, 1.0, 1.0, 4.0]], dtype=torch.float64)
    assert compare(reference.float(), reference).ulp_relative_rms == pytest.approx(2.0**-23)
    assert compare(reference.bfloat16(), reference).ulp_relative_rms == 0.0


def test_relative_errors_of_rows_with_nan_and_inf_are_those_of_their_finite_values() -> None:
    reference = torch.tensor([[1.0, 2.0, math.inf, math.nan, 2.0]], dtype=torch.float64)
    found = compare(reference.float() + torch.tensor([[0.1, 0.0, 0.0, 0.0, 0.0]]), reference)
    assert (found.relative_elements, found.mismatches) == (3, 0)
    assert found.relative_rms == pytest.approx(math.sqrt(0.1**2 / 3), rel=1e-5)


def test_a_channel_with_nan_or_zeros_still_has_a_scale() -> None:
    reference = SIGNS.clone()
    reference[0, 0] = NAN
    reference[:, 1] = 0.0
    output = reference.float()
    output[1, 0] += 0.5
    assert compare(output, reference).channel_max == pytest.approx(0.5, rel=0.1)


def test_truncation_shows_as_inward_errors_and_rounding_does_not() -> None:
    reference = torch.randn(256, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    truncated = (reference.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    found = compare(truncated, reference)
    assert found.outward_bias == -1.0
    assert abs(found.mean) < 0.05 * found.rms, "the signed mean does not see it"
    assert abs(compare(reference.float().bfloat16(), reference).outward_bias) < 0.05


def test_row_correlated_errors_have_a_wide_standard_error() -> None:
    generator = torch.Generator().manual_seed(4)
    reference = torch.randn(64, 64, dtype=torch.float64, generator=generator)
    per_row = compare((reference * (1 + 1e-3 * torch.randn(64, 1, generator=generator))).float(), reference)
    per_element = compare((reference * (1 + 1e-3 * torch.randn(64, 64, generator=generator))).float(), reference)
    assert per_row.outward_bias_sd == pytest.approx(1 / 8, rel=0.3)
    assert per_element.outward_bias_sd == pytest.approx(1 / 64, rel=0.3)


def test_a_reference_of_another_shape_or_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="float64 reference"):
        compare(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="float64 reference"):
        compare(torch.zeros(2), torch.zeros(3, dtype=torch.float64))


def test_empty_and_scalar_outputs() -> None:
    assert compare(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.float64)) == ErrorMetrics()
    assert compare(torch.tensor(1.5), torch.tensor(1.0, dtype=torch.float64)).max == 0.5


def with_flips(count: int, flips: int) -> ErrorMetrics:
    """`count` Infs of both signs, `flips` of them with the other sign."""
    reference = torch.full((1, count), INF, dtype=torch.float64)
    reference[0, ::2] = -INF
    output = reference.float()
    output[0, :flips] *= -1.0
    return compare(output, reference)


def test_a_rounding_may_decide_the_sign_of_a_few_infs_but_not_of_many() -> None:
    """Inf times what two larger values leave of each other; a kernel that has a sign wrong flips half of them, or all."""
    assert with_flips(1000, 10).mismatches == 0
    assert with_flips(1000, 11).mismatches == 11
    assert with_flips(99, 1).mismatches == 1
    assert with_flips(8, 8).mismatches == 8


def test_a_flip_is_no_excuse_for_a_nan_or_a_finite_value() -> None:
    reference = torch.full((1, 1000), INF, dtype=torch.float64)
    output = reference.float()
    output[0, 0], output[0, 1] = NAN, 1.0
    assert compare(output, reference).mismatches == 2


def test_what_one_rounding_of_the_exact_result_does_is_no_bias() -> None:
    """Values that lie close together all round the same way; what a kernel adds to that is its own."""
    reference = 1003.0 + 0.5 * torch.rand(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rounded = compare(reference.bfloat16(), reference)
    assert rounded.mean > 0.5
    assert rounded.excess_mean == 0.0
    off = compare((reference.bfloat16() + 8.0), reference)
    assert off.excess_mean == pytest.approx(8.0)
    overflow = torch.full((2, 4), 65519.0, dtype=torch.float64)
    assert compare(torch.full((2, 4), 65504.0).half(), overflow).excess_mean == pytest.approx(0.0)


def test_the_spread_between_draws_sees_one_draw_that_makes_all_of_an_error_and_the_ratio_whether_both_chains_share_it() -> None:
    calm, hit = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95], [1.0, 1.1, 0.9, 1.0, 1.05, 1e6]
    elements = [100] * 6
    assert rms_spread(calm, elements) == pytest.approx(0.5 * 0.0705 / math.sqrt(6), rel=0.02)
    assert rms_spread(hit, elements) == pytest.approx(math.sqrt(5 / 6), rel=0.03)
    assert rms_spread(hit, hit) == pytest.approx(0.0, abs=1e-12)
    assert rms_spread(hit, calm) == pytest.approx(math.sqrt(5 / 6), rel=0.03)
    assert rms_spread([0.0] * 6, elements) is None
    assert rms_spread([1.0, 2.0], [0, 10]) is None


def test_rows_that_repeat_one_another_count_as_one_row() -> None:
    """What is added to a residual of one row, 1e14 times as large, shows in float64 alone."""
    generator = torch.Generator().manual_seed(5)
    row, added = torch.randn(64, dtype=torch.float64, generator=generator), torch.randn(40, 64, dtype=torch.float64, generator=generator)
    reference = row * (1 + 2.0**-30) + 2.0**-46 * added
    output = reference.float()
    alike = compare(output, reference)
    assert (alike.elements, alike.rows, alike.channel_elements, alike.relative_elements) == (40 * 64, 1, 0, 40 * 64)
    assert alike.outward_row_squares == alike.outward**2 > 0
    output[37, 3] += 1.0
    assert compare(output, reference).max == pytest.approx(1.0), "every row is compared all the same"


@pytest.mark.parametrize("repeats", [1, 4], ids=["every row another", "four alike"])
def test_sixteen_rows_that_differ_are_rows(monkeypatch: pytest.MonkeyPatch, repeats: int) -> None:
    rows = torch.randn(17, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).repeat_interleave(repeats, 0)
    for chunk in (1 << 15, 5 * 64):
        monkeypatch.setitem(comparison._CHUNK, "cpu", chunk)
        assert compare(rows.float(), rows).rows == len(rows)
        assert compare(rows[: -2 * repeats].float(), rows[: -2 * repeats]).rows == (15 if repeats == 1 else 1)
