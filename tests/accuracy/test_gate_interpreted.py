"""What the gate asks of a kernel in an interpreter, where a launch costs milliseconds, and that it still sees what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.schema import Bitwise, Language

INPUTS = 3 + 4
"""A plain draw of each magnitude, and one of each special value."""


@pytest.fixture
def check(toys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`check(function, **params)`: the gate's judgement on `function` as a Triton kernel in the interpreter, from two tokens on."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def run(function: Any, *, contract: Any = None, **params: Any) -> Any:
        return toys.check(
            toys.rms_scale, function, toys.Params(**params), contract=contract, language=Language.TRITON, rows=2, seed=3
        )  # fmt: skip

    return run


@pytest.fixture
def counted(toys: Any) -> Any:
    """An honest kernel; `counted.calls` says how often it ran."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        function.calls += 1  # type: ignore[attr-defined]
        return toys.fused(x, weight)

    function.calls = 0  # type: ignore[attr-defined]
    return function


def test_draws_that_only_fill_statistics_are_one_call_each(check: Any, counted: Any) -> None:
    accuracy = check(counted, channels=512)
    assert accuracy.passed, accuracy.reason
    assert accuracy.interpreted
    assert accuracy.tokens == 2
    assert accuracy.draws >= 8 + 2, "sixteen rows at magnitude 1, which bias is judged on, and a draw of each other magnitude"
    assert counted.calls == accuracy.draws + INPUTS


def test_on_a_device_every_draw_is_two_calls(toys: Any, counted: Any) -> None:
    accuracy = toys.check(toys.rms_scale, counted, toys.Params(channels=512), rows=2, seed=3)
    assert not accuracy.interpreted
    assert counted.calls == 2 * accuracy.draws


def test_equal_bits_need_no_statistics(toys: Any, check: Any) -> None:
    contract = Bitwise(str(toys.rms_split.id))
    accuracy = check(toys.split_norm, contract=contract, channels=512)
    assert accuracy.passed, accuracy.reason
    assert accuracy.draws == INPUTS
    assert "not bit for bit" in check(toys.fused, contract=contract, channels=512).reason


def test_narrow_rows_get_more_of_them_instead_of_hundreds_of_draws(check: Any, counted: Any) -> None:
    accuracy = check(counted, channels=8)
    assert accuracy.passed, accuracy.reason
    assert accuracy.tokens == 32, "16 elements in two rows; a sixteenth of the 4096 that bias is judged on are 256"
    assert accuracy.draws <= 16 + 4 + 2
    assert accuracy.elements >= 4096


def unwritten_last_row(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    output = torch.empty_like(x)
    output[:-1] = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float())[:-1]
    return output


def test_memory_that_was_never_written_is_seen(check: Any) -> None:
    assert "never written" in check(unwritten_last_row, channels=512).reason


@pytest.mark.parametrize("at", [1.0, 1e-3, 1e3])
def test_a_result_that_differs_from_call_to_call_is_seen_at_every_magnitude(toys: Any, check: Any, at: float) -> None:
    calls = []

    def drifting(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output = toys.fused(x, weight)
        if 0.3 * at < float(x.float().abs().median()) < 1.2 * at:
            calls.append(1)
            output[0, 0] += len(calls) % 2 * output[0, 0].abs().clamp_min(1e-3)
        return output

    reason = check(drifting, channels=512).reason
    assert f"at input magnitude {at:g}" in reason


def test_bias_is_seen(toys: Any, check: Any) -> None:
    def truncating(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (toys.norm(x, weight).view(torch.int32) & -65536).view(torch.float32).to(x.dtype)

    assert check(toys.fused, channels=512).passed
    assert not check(truncating, channels=512).passed
