"""The launches for few rows: which offsets they take for wide, and rows that lie further apart than 31 bits reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

KERNELS = {
    "norm_scale_shift": "fused_triton@4",
    "residual_gate_norm_scale_shift": "fused_triton@4",
    "norm_scale_shift_gate_select01": "fused_triton@4",
    "residual_norm_scale_shift_gate_select01": "fused_triton@4",
    "norm_tanh_mul_add": "fused_triton@5",
    "norm_tanh_mul_add_norm_scale": "fused_triton@5",
}


def far_apart(rows: torch.Tensor) -> torch.Tensor:
    """Equal values whose tokens lie 2^30 elements apart: the third one's offset is 2^31, which wraps to memory before the first."""
    apart = torch.empty(2**32 + rows.shape[-1], dtype=rows.dtype, device=rows.device)  # a CPU's memory is taken where it is written
    return apart.as_strided(rows.shape, (math.prod(rows.shape[1:]), 2**30, 1), 2**31).copy_(rows)


@pytest.mark.usefixtures("memory_is_let_go")
@pytest.mark.parametrize("op", KERNELS)
def test_rows_that_lie_far_apart_give_what_dense_ones_give(bench_of: Callable[[str], Any], op: str) -> None:
    bench = bench_of(op)
    params = bench.op.parse_params({"tokens": 3, "hidden": 64, "dtype": "bfloat16"})
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    kernel = bench.kernel(KERNELS[op])
    dense = kernel(**arguments)
    apart = kernel(**arguments | {"x": far_apart(arguments["x"])})
    torch.testing.assert_close(apart, dense, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("tokens", "samples", "strides", "due"),
    [
        (1, 1, (0, 2**40), False),
        (3, 1, (0, 2**30), True),
        (3, 1, (0, 2**30 - 32), False),
        (3, 2, (2**31, 64), True),
        (3, 1, (2**31, 64), False),
        (3, 2, (192, 64, 1), False),
    ],
)
def test_an_offset_is_wide_where_the_last_row_ends_beyond_31_bits(
    shared: Any, tokens: int, samples: int, strides: tuple[int, ...], due: bool
) -> None:
    assert shared("few_rows_triton").wide(tokens, samples, 64, (192, 64), strides) is due


def test_rows_per_group_do_not_matter_where_all_groups_are_one(shared: Any) -> None:
    undivided = shared("few_rows_triton").undivided
    assert undivided((192, 0, 3)) == (192, 0, 1)
    assert undivided((192, 64, 3)) == (192, 64, 3)


@pytest.mark.parametrize(
    ("op", "changes", "reason"),
    [(op, {"tokens": 8, "hidden": 96}, None) for op in KERNELS]
    + [(op, {"tokens": 513, "hidden": 96}, "513 rows: made for at most 512") for op in KERNELS]
    + [(op, {"tokens": 8, "hidden": 104}, "rows of 104: 16 does not divide it") for op in KERNELS],
)
def test_a_call_of_many_or_unaligned_rows_is_declined(
    bench_of: Callable[[str], Any], op: str, changes: dict[str, int], reason: str | None
) -> None:
    bench = bench_of(op)
    found = bench.kernel(KERNELS[op]).reason_unsupported(bench.op.parse_params(changes))
    assert found is None if reason is None else str(found).startswith(reason)
