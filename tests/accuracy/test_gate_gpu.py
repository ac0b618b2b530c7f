"""The gate on a GPU: the same guards and poison, and the net below the dispatcher that only a caching allocator gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.accuracy.poison import poisoned, unwritten

pytestmark = pytest.mark.gpu


def test_the_caching_allocator_hands_out_poison_to_code_below_the_dispatcher() -> None:
    for shape in ((3, 5), (257, 64), (4096, 1024)):
        like = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
        with poisoned([like], intercept=False):
            fresh = torch.empty_like(like)
        assert unwritten(fresh).numel() == like.numel()


def test_honest_kernels_pass(toys: Any) -> None:
    for dtype in ("bfloat16", "float16", "float32"):
        for op, function in ((toys.rms_scale, toys.fused), (toys.packed, toys.packed_fused)):
            accuracy = toys.check(op, function, toys.Params(dtype=dtype), device="cuda")
            assert accuracy.passed, accuracy.reason


def test_an_unwritten_tail_is_caught(toys: Any) -> None:
    def tail_not_written(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(x)
        output[:-1] = toys.fused(x, weight)[:-1]
        return output

    assert "never written" in toys.check(toys.rms_scale, tail_not_written, device="cuda").reason


def test_a_write_past_the_end_is_caught(toys: Any) -> None:
    def writes_past_the_end(q: torch.Tensor, k: torch.Tensor, weight: torch.Tensor) -> None:
        toys.packed_fused(q, k, weight)
        weight.as_strided((1,), (1,), weight.storage_offset() + weight.numel()).fill_(0.0)

    assert "guard after buffer 'weight': 2 bytes" in toys.check(toys.packed, writes_past_the_end, device="cuda").reason
