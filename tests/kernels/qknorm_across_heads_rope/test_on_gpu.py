"""What only a GPU can show: every kernel on every edge case, alignment, 64-bit offsets, and which kernel dispatch takes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.registry import dispatch

pytestmark = pytest.mark.gpu

SUITE = Path(__file__).parents[3] / "suites" / "edges_qknorm_across_heads_rope.toml"
EDGES = {case["name"]: case["params"] for case in tomllib.loads(SUITE.read_text())["case"]}
FUSED = ("fused_triton@1", "fused_triton@2", "fused_cuda@1")


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1", "split_torch@1"])
@pytest.mark.parametrize("name", EDGES)
def test_every_edge_case_passes_the_gate(bench: Any, kernel: str, name: str) -> None:
    params = bench.op.parse_params(EDGES[name])
    chosen = bench.kernel(kernel)
    if (reason := chosen.reason_unsupported(params)) is not None:
        assert kernel == "fused_cuda@1", reason
        pytest.skip(reason)
    accuracy = check_kernel(chosen, bench.op, params, split=bench.split, others=bench.collection.kernels, device=bench.device, seed=11)
    assert accuracy.passed, accuracy.reason


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("heads", [12, 24, 40])
def test_many_tokens_are_rounded_once(bench: Any, parse: Any, one_rounding: Any, kernel: str, heads: int) -> None:
    """More tokens than resident programs, so that persistent launches come to their prefetched ones."""
    params = parse(tokens=1500, batch=2, heads=heads)
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)
    for output, value in bench.run(kernel, params, buffers).items():
        assert one_rounding(value.flatten(1), reference[output].flatten(1)) <= 1, output


@pytest.mark.parametrize("kernel", FUSED)
def test_rows_that_start_off_16_bytes(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(tokens=33)
    buffers = bench.buffers(params)
    due = bench.run(kernel, params, buffers)
    arguments = dict(bench.op.arguments(params, buffers))
    for name in ("q", "k", "q_weight", "cos_sin_cache"):
        given = arguments[name]
        arguments[name] = given.new_empty(given.numel() + 1)[1:].view(given.shape).copy_(given)
    bench.kernel(kernel)(**arguments)
    for name, expected in due.items():
        torch.testing.assert_close(arguments[name], expected, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("kernel", FUSED)
def test_offsets_past_32_bits(bench: Any, parse: Any, kernel: str) -> None:
    """Tokens x row stride beyond 2^31 elements: the last token of a long packed projection."""
    params = parse(tokens=1, heads=2, head_dim=64)
    buffers = bench.buffers(params)
    due = bench.run(kernel, params, buffers)
    tokens, stride = 40_000, 60_000
    wide = torch.zeros(tokens * stride, dtype=torch.bfloat16, device=bench.device)
    q, k = (wide.as_strided((tokens, 2, 64), (stride, 64, 1), offset) for offset in (0, 128))
    q[-1], k[-1] = buffers["q"][0], buffers["k"][0]
    rest = {name: buffers[name] for name in ("q_weight", "k_weight", "cos_sin_cache")}
    bench.kernel(kernel)(q, k, **rest, eps=params.eps)
    assert torch.equal(q[-1], due["q"][0])
    assert torch.equal(k[-1], due["k"][0])


def test_dispatch_takes_a_fused_kernel(bench: Any, parse: Any) -> None:
    params = parse(heads=12, packed=True)
    arguments = bench.op.arguments(params, bench.buffers(params))
    call = dispatch(bench.op.name, collection=bench.collection)
    assert "/fused_" in call.explain(**arguments).kernel
    call(**arguments)
    assert call.fallbacks == []


def test_the_compiled_split_chain_passes_the_gate(bench: Any, parse: Any) -> None:
    torch._dynamo.reset()
    accuracy = check_kernel(bench.kernel("compiled@1"), bench.op, parse(heads=12), split=bench.split, device=bench.device, seed=11)
    assert accuracy.passed, accuracy.reason
