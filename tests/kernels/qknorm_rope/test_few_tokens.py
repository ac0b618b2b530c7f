"""The launch for few tokens of qknorm_rope and rotary_embedding: which calls it takes, its tile, and tokens that lie far apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

OPS = ("qknorm_rope", "rotary_embedding")


@pytest.mark.usefixtures("memory_is_let_go")
@pytest.mark.parametrize("op", OPS)
def test_tokens_that_lie_far_apart_give_what_dense_ones_give(bench_of: Callable[[str], Any], op: str) -> None:
    """The third token's offset is 2^31, which 32 bits would wrap to memory before the first."""
    bench = bench_of(op)
    params = bench.op.parse_params({"tokens": 3, "heads": 2, "head_dim": 64, "layout": "interleaved"})
    buffers = bench.buffers(params)
    arguments = dict(bench.op.arguments(params, buffers))
    kernel = bench.kernel("fused_triton@3")
    memory = torch.empty(2**32 + 128, dtype=torch.bfloat16, device=bench.device)  # a CPU's memory is taken where it is written
    apart = memory.as_strided((3, 2, 64), (2**30, 64, 1), 2**31).copy_(arguments["q"])
    before = arguments["q"].clone()
    kernel(**arguments | {"q": apart, "k": arguments["k"].clone()})
    kernel(**arguments)
    assert not torch.equal(arguments["q"], before)
    torch.testing.assert_close(apart, arguments["q"], rtol=0, atol=0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": 256}, ""),
        ({"tokens": 257}, "257 tokens: made for at most 256"),
        ({"layout": "neox", "rope_dim": 66}, "neox halves of 33 values of 2 bytes: Triton would load them one at a time"),
        ({"layout": "neox", "rope_dim": 66, "dtype": "float32"}, ""),
        ({"rope_dim": 66}, ""),
    ],
)
def test_a_call_of_many_tokens_or_odd_halves_is_declined(
    bench_of: Callable[[str], Any], op: str, changes: dict[str, Any], reason: str
) -> None:
    bench = bench_of(op)
    params = bench.op.parse_params({"tokens": 4, "heads": 2, "head_dim": 96, "layout": "interleaved"} | changes)
    assert (bench.kernel("fused_triton@3").reason_unsupported(params) or "") == reason


@pytest.mark.parametrize(("rows", "heads", "due"), [(1, 32, 1), (3, 32, 1), (4, 32, 4), (256, 3, 4), (256, 2, 2), (256, 1, 1)])
def test_a_program_has_four_heads_where_there_are_as_many_and_tokens_enough(module: Any, rows: int, heads: int, due: int) -> None:
    assert tuple(module("_few_tokens").tile_of(rows, heads)) == (due, due)


@pytest.mark.parametrize(
    ("q", "k", "shape", "due"),
    [
        ((24, 0, 3072), (24, 0, 3072), (1, 4, 128), 24),
        ((24, 0, 3072), (0, 0, 0), (1, 4, 128), 24),
        ((8, 512, 512), (8, 512, 512), (32, 1, 64), 4),
        ((8, 0, 320), (8, 0, 320), (1, 1, 40), 4),
        ((5, 0, 320), (5, 0, 320), (1, 2, 64), 0),  # five heads are no whole pairs
        ((24, 0, 3072), (8, 0, 1024), (1, 4, 128), 0),
        ((24, 0, 9216), (24, 0, 3072), (1, 4, 128), 0),  # of a packed projection
        ((24, 0, 9216), (24, 0, 9216), (1, 1, 128), 24),  # of which one token has no next
        ((8, 1024, 512), (8, 512, 512), (32, 1, 64), 0),
        ((24, 12288, 3072), (24, 12288, 3072), (2, 4, 128), 0),  # a token of a sample
        ((24, 0, 3072), (24, 0, 3072), (1, 6, 128), 0),  # 144 programs
    ],
)
def test_few_packed_heads_are_a_grid_of_one_dimension(module: Any, q: Any, k: Any, shape: tuple[int, int, int], due: int) -> None:
    few = module("_few_tokens")
    assert few.flat_blocks(few.Heads(*q), few.Heads(*k), *shape) == due


@pytest.mark.parametrize(
    "changes", [{"tokens": 4, "heads": 24}, {"tokens": 1, "batch": 3, "heads": 4, "head_dim": 64}, {"tokens": 4, "heads": 4, "kv_heads": 0}]
)
def test_heads_that_the_number_of_a_program_places_are_turned_alike(bench_of: Callable[[str], Any], changes: dict[str, Any]) -> None:
    bench = bench_of("rotary_embedding")
    params = bench.op.parse_params({"head_dim": 128, "layout": "interleaved", "position_offset": 3} | changes)
    buffers = bench.buffers(params)
    given = dict(bench.op.arguments(params, buffers))
    turned = {name: value.clone() for name, value in given.items() if name in ("q", "k") and value is not None}
    bench.kernel("fused_triton@3")(**given | turned)
    bench.kernel("fused_triton@2")(**given)
    for name, value in turned.items():
        torch.testing.assert_close(value, given[name], rtol=0, atol=0)
