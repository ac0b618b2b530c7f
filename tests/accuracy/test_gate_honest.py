"""The gate does not cry wolf: kernels that keep their contract pass whatever the seed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from fusebench.accuracy.draws import Special, keep_in_range, plant, special_draws
from fusebench.schema import Bitwise, Role
from fusebench.verdict.accuracy_change import accuracy_growth
from helpers.matrices import few

SHAPES = [(96, 64, 100), (7, 128, 60), (3, 96, 40)]
"""Rows, channels, checks: 200 in all."""


@pytest.mark.parametrize(("rows", "channels", "checks"), few(SHAPES, (7, 128, 60)))
def test_an_honest_kernel_passes_two_hundred_checks(toys: Any, rows: int, channels: int, checks: int) -> None:
    for seed in range(checks):
        dtype = ("bfloat16", "float16", "float32")[seed % 3]
        accuracy = toys.check(toys.rms_scale, toys.fused, toys.Params(rows=rows, channels=channels, dtype=dtype), seed=seed)
        assert accuracy.passed, f"seed {seed}, {dtype}: {accuracy.reason}"


def test_an_honest_kernel_passes_on_64_elements(toys: Any) -> None:
    for seed in range(3):
        accuracy = toys.check(toys.rms_scale, toys.fused, toys.Params(rows=1), seed=seed)
        assert accuracy.passed, f"seed {seed}: {accuracy.reason}"
        assert accuracy.elements >= 3 * 4096


@pytest.mark.parametrize("style", ["overwrites", "returns new tensors", "overwrites and returns"])
def test_every_permitted_style_of_in_place_kernel_passes(toys: Any, style: str) -> None:
    def kernel(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> Any:
        if style == "returns new tensors":
            return toys.norm(q, weight).to(q.dtype), toys.norm(k, weight).to(k.dtype)
        toys.packed_fused(q, k, weight)
        return None if style == "overwrites" else (q, k)

    for seed in range(10):
        accuracy = toys.check(toys.packed, kernel, toys.Params(rows=33), seed=seed)
        assert accuracy.passed, accuracy.reason


def test_a_kernel_with_the_split_chains_amount_of_error_passes(toys: Any) -> None:
    """Two roundings at other places than the split chain's: errors of the same size that are not the same errors."""

    def weight_first(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return ((wide * weight.float()).to(x.dtype).float() * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    for seed in range(30):
        accuracy = toys.check(toys.rms_scale, weight_first, toys.Params(rows=(40, 8)[seed % 2]), seed=seed)
        assert accuracy.passed, f"seed {seed}: {accuracy.reason}"


def test_the_split_chain_passes_its_own_contract_bit_for_bit(toys: Any) -> None:
    accuracy = toys.check(toys.rms_scale, toys.split_norm, contract=Bitwise(to="rms_scale/split@1"), seed=5)
    assert accuracy.passed
    assert accuracy.equal_to_split == 1.0
    assert (accuracy.rms_error, accuracy.max_error) == (accuracy.split_rms_error, accuracy.split_max_error)


def test_the_result_reports_errors_beside_the_split_chains(toys: Any) -> None:
    accuracy = toys.check(toys.rms_scale, toys.fused, seed=9)
    assert 0 < accuracy.rms_error < accuracy.split_rms_error
    assert 0 < accuracy.max_error <= accuracy.split_max_error
    assert 0.3 < accuracy.equal_to_split < 1.0
    assert accuracy.within_loose_tolerance
    assert (accuracy.contract, accuracy.reason, accuracy.tokens) == ("close(1.5x split)", "", None)


def test_the_seed_reproduces_a_check_and_is_drawn_when_absent(toys: Any) -> None:
    assert toys.check(toys.rms_scale, toys.fused, seed=11) == toys.check(toys.rms_scale, toys.fused, seed=11)
    first, second = (toys.check(toys.rms_scale, toys.fused) for _ in range(2))
    assert first.seed != second.seed
    assert first.rms_error != second.rms_error
    assert toys.check(toys.rms_scale, toys.fused, seed=first.seed) == first


def test_progress_reaches_the_planned_count(toys: Any) -> None:
    calls: list[tuple[int, int]] = []
    accuracy = toys.check(toys.rms_scale, toys.fused, toys.Params(rows=5), on_draw=lambda done, planned: calls.append((done, planned)))
    assert [done for done, _ in calls] == list(range(1, accuracy.draws + 1))
    assert calls[-1][1] == accuracy.draws
    assert all(done <= planned for done, planned in calls)


def test_special_values_share_a_draw_only_where_rows_allow() -> None:
    kinds = (Special.ZEROS, Special.NAN, Special.INF, Special.NEGATIVE_INF, Special.SMALL)
    assert special_draws({"x": torch.zeros(64, 4), "weight": torch.zeros(4)}) == [kinds]
    assert special_draws({"x": torch.zeros(63, 4), "weight": torch.zeros(4)}) == [
        (Special.ZEROS, Special.SMALL),
        *((kind,) for kind in (Special.NAN, Special.INF, Special.NEGATIVE_INF)),
    ]
    assert special_draws({"x": torch.zeros(1, 4)})[0] == (Special.ZEROS,), "one row has no room for both"


def test_planted_rows_are_what_they_are_called_and_leave_the_rest_alone() -> None:
    for rows in (1, 7, 64, 5000):
        buffers = {"x": torch.ones(rows, 32), "weight": torch.ones(8), "positions": torch.arange(rows)}
        for kinds in special_draws(buffers):
            planted = {name: buffer.clone() for name, buffer in buffers.items()}
            plant(planted, kinds, random.Random(1))
            x = planted["x"]
            found = {
                Special.ZEROS: (x == 0).all(1),
                Special.NAN: x.isnan().any(1),
                Special.INF: x.isposinf().any(1),
                Special.NEGATIVE_INF: x.isneginf().any(1),
                Special.SMALL: ((x != 0) & (x.abs() < 0.01)).all(1),
            }
            assert {kind for kind, mask in found.items() if mask.any()} == set(kinds)
            plain = (x == 1).all(1)
            assert int(plain.sum()) + sum(int(mask.sum()) for mask in found.values()) == rows
            assert rows == 1 or int(plain.sum()) >= rows // 2
            assert torch.equal(planted["weight"], buffers["weight"]) or rows == 1
            assert torch.equal(planted["positions"], buffers["positions"])


def test_float16_inputs_that_overflow_are_brought_back() -> None:
    buffers = {"x": torch.tensor([float("inf"), 1.0, float("-inf")]).half(), "positions": torch.arange(3)}
    keep_in_range(buffers)
    assert buffers["x"].tolist() == [65504.0, 1.0, -65504.0]


@pytest.mark.parametrize(("params", "unit"), [({"rows": 400, "channels": 128}, "channel"), ({"rows": 6, "channels": 1024}, "value")])
def test_the_error_that_growth_is_judged_on_hardly_depends_on_the_draws(toys: Any, params: dict[str, int], unit: str) -> None:
    """Its scatter between checks must lie well inside the margin of 10 %, as that of plain errors does not: outlier channels carry most of
    them, and lie elsewhere in every check."""
    found = [toys.check(toys.rms_scale, toys.fused, toys.Params(**params), seed=seed) for seed in range(12)]
    errors = [output for accuracy in found for output in accuracy.outputs]
    assert {(output.name, output.unit, output.floor) for output in errors} == {("y", unit, 0.0)}
    for figures in ([output.rms for output in errors], [output.split_rms for output in errors]):
        assert 0 < max(figures) < 1.05 * min(figures)
    assert all(output.rms < output.split_rms for output in errors)
    plain = [accuracy.rms_error / accuracy.split_rms_error for accuracy in found]
    assert unit == "channel" or max(plain) > 1.10 * min(plain), "or this test shows nothing"


def test_where_one_number_decides_how_all_results_round_growth_does_not_follow_it(toys: Any) -> None:
    """As one shift for all rows does, or one position for all tokens: every draw rounds otherwise, however many elements it has."""

    class Shifted(type(toys.rms_scale)):  # type: ignore[misc]
        name = "shifted"

        def buffers(
            self, params: Any, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0
        ) -> dict[str, torch.Tensor]:
            x = torch.randn(params.rows, params.channels, generator=generator, device=device) * magnitude
            shift = torch.rand(1, generator=generator, device=device) + 1
            return {"x": x.bfloat16(), "weight": (shift * magnitude).expand(params.channels).bfloat16()}

        def reference(self, params: Any, arguments: Any) -> dict[str, torch.Tensor]:
            return {"y": arguments["weight"].double() + arguments["x"].double() / 64}

    def shifted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (weight.float() + x.float() / 64).to(x.dtype)

    def less_accurate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (weight.float() * 1.002 + x.float() / 64).to(x.dtype)

    op = Shifted()
    split = toys.kernel(op, "split", shifted, role=Role.SPLIT)
    params = toys.Params(rows=400, channels=128)
    found = [toys.check(op, shifted, params, split=split, seed=seed) for seed in range(12)]
    errors = [accuracy.outputs[0].rms for accuracy in found]
    assert max(errors) > 1.1 * min(errors), "or this test shows nothing"
    assert max(accuracy_growth(new, old) for new in found for old in found) < 1.01
    worse = toys.check(op, less_accurate, params, split=split, seed=99)
    assert min(accuracy_growth(worse, old) for old in found) > 1.1
