"""Luck: which broken bounds more draws may excuse, and that a fault which repeats is not excused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fusebench.accuracy import pool as pool_module
from fusebench.accuracy.metrics import ErrorMetrics
from fusebench.accuracy.one_draw import OutputErrors
from fusebench.accuracy.pool import Pool
from fusebench.schema import Close

LARGE = 1 << 21
SPLIT = ErrorMetrics(
    elements=LARGE,
    rows=LARGE // 1024,
    error_squares=1.0 * LARGE,
    max=5.0,
    channel_elements=LARGE,
    channel_squares=1.0 * LARGE,
    channel_max=5.0,
)
"""RMS 1, maximum 5."""


def pool_of(kernel: ErrorMetrics) -> Pool:
    pool = Pool(("y",), Close(1.5))
    errors = OutputErrors(
        kernel=kernel, split=SPLIT, dtype=torch.bfloat16, elements=kernel.elements, equal_to_split=0, within_loose_tolerance=True
    )
    pool.add({"y": errors})
    return pool


@pytest.mark.parametrize(
    ("kernel", "luck"),
    [
        (replace(SPLIT, max=8.0), True),
        (replace(SPLIT, channel_max=8.0), True),
        (replace(SPLIT, max=8.0, error_squares=2.3 * LARGE), False),
        (replace(SPLIT, rows=1, error_squares=2.3 * LARGE), True),
        (replace(SPLIT, rows=1, error_squares=40 * LARGE), False),
        (replace(SPLIT, error_squares=2.3 * LARGE), False),
        (replace(SPLIT, max=30.5), False),
        (replace(SPLIT, max=8.0, mismatches=1), False),
        (replace(SPLIT, max=8.0, error_sum=0.5 * LARGE), False),
    ],
    ids=["maximum", "maximum per channel", "RMS too", "RMS of one row", "gross, of one row", "RMS", "gross", "NaN", "biased"],
)
def test_of_large_draws_only_a_maximum_near_its_bound_may_be_luck(kernel: ErrorMetrics, luck: bool) -> None:
    pool = pool_of(kernel)
    assert pool.judge()
    assert pool.may_be_luck() is luck


def erring(toys: Any, *, once: bool) -> Any:
    """A kernel that adds 1 % to its largest element, in its first two calls or in all."""
    calls = [0]

    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = toys.fused(x, weight)
        calls[0] += 1
        if not once or calls[0] <= 2:
            worst = output.abs().nan_to_num(0.0, 0.0, 0.0).argmax()
            output.view(-1)[worst] *= 1.01
        return output

    return kernel


@pytest.mark.parametrize("once", [True, False])
def test_a_large_maximum_counts_if_fresh_draws_show_it_again(toys: Any, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    monkeypatch.setattr(pool_module, "_CONFIRM_BELOW", 1)  # every draw counts as large
    params = toys.Params(rows=96, channels=64)
    accuracy = toys.check(toys.rms_scale, erring(toys, once=once), params, contract=Close(1.5), seed=3)
    assert accuracy.passed is once, accuracy.reason
    assert once or "maximum error" in accuracy.reason


def test_the_fresh_draws_hold_special_values_where_the_first_ones_do(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that rows of special values alone show would be excused by draws without any."""
    monkeypatch.setattr(pool_module, "_CONFIRM_BELOW", 1)
    special: list[bool] = []
    kernel = erring(toys, once=False)

    def watched(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        special.append(bool(x.isnan().any()))
        return kernel(x, weight)  # type: ignore[no-any-return]

    accuracy = toys.check(toys.rms_scale, watched, toys.Params(rows=96, channels=64), contract=Close(1.5), seed=3)
    assert not accuracy.passed
    assert sum(special) == 4, "two calls per draw: one such draw at first, and one among the fresh ones"
