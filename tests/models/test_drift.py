"""Distances of trajectories, and the verdict on them."""

from __future__ import annotations

import math

import pytest
import torch

from fusebench.models.measuring.drift import LIMIT, distances, judge, other_order
from fusebench.schema import VerdictKind

BY = "another order"


def _trajectory(scale: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    own = [torch.randn(4, 256, generator=generator) for _ in range(3)]
    noise = torch.Generator().manual_seed(2)
    return [one + scale * torch.randn(one.shape, generator=noise) for one in own]


def test_distance_of_known_noise() -> None:
    found = distances(_trajectory(0.01), _trajectory(0.0))
    assert [one.step for one in found] == [1, 2, 3]
    for one in found:
        assert one.rms == pytest.approx(0.01, rel=0.1)
        assert 0.02 < one.largest < 0.06
        assert one.psnr_db == pytest.approx(20 * math.log10(6.4 / 0.01), abs=2.0)


@pytest.mark.parametrize(("scale", "kind"), [(0.01, VerdictKind.PASS), (0.01 * LIMIT * 1.1, VerdictKind.REGRESSION)])
def test_drift_beyond_the_equivalents_is_a_regression(scale: float, kind: VerdictKind) -> None:
    own, equivalent = _trajectory(0.0), _trajectory(0.01)
    found = judge("fused", distances(_trajectory(scale), own), distances(equivalent, own), BY)
    assert found.verdict.kind is kind
    assert "at most 1.5 times is allowed" in found.verdict.reason


def test_one_step_beyond_the_limit_suffices() -> None:
    own = _trajectory(0.0)
    fused = [*_trajectory(0.01)[:2], _trajectory(0.02)[2]]
    found = judge("fused", distances(fused, own), distances(_trajectory(0.01), own), BY)
    assert found.verdict.kind is VerdictKind.REGRESSION
    assert found.verdict.reason.startswith("after step 3 ")


def test_latents_that_are_not_finite() -> None:
    own = _trajectory(0.0)
    fused = _trajectory(0.0)
    fused[1][0, 0] = math.nan
    found = judge("fused", distances(fused, own), distances(_trajectory(0.01), own), BY)
    assert (found.verdict.kind, found.verdict.reason) == (VerdictKind.REGRESSION, "latents are not finite after step 2")


def test_the_same_bits_pass_and_an_equal_equivalent_tells_nothing() -> None:
    own = _trajectory(0.0)
    same = distances(own, own)
    assert judge("fused", same, same, BY).verdict.kind is VerdictKind.PASS
    found = judge("fused", distances(_trajectory(0.01), own), same, BY)
    assert (found.verdict.kind, found.verdict.reason[:29]) == (VerdictKind.UNDECIDED, "another order changes no bit ")


def test_another_order_changes_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(1, 4, 64, 64, generator=generator).bfloat16()
    attend = torch.nn.functional.scaled_dot_product_attention
    own = attend(query, query, query)
    with other_order(torch.device("cpu")) as by:
        other = attend(query, query, query)
    assert "attention by its formula" in by
    assert not torch.equal(own, other)
    assert torch.equal(attend(query, query, query), own), "the order is not put back"
