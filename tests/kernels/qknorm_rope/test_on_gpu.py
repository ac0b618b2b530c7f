"""What only a GPU can show: every kernel on every edge case, the compiler's default backend, alignment, and 64-bit offsets."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel, compare, judge_bitwise, judge_close
from fusebench.accuracy.contracts import floor_ulps
from fusebench.registry import Collection, dispatch

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[3]
FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@3", "fused_cuda@1")
TENSORS = ("q", "k", "q_weight", "k_weight", "cos_sin_cache", "positions")


EDGES = {case["name"]: case["params"] for case in tomllib.loads((ROOT / "suites" / "edges_qknorm_rope.toml").read_text())["case"]}


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1", "split_torch@1"])
@pytest.mark.parametrize("name", EDGES)
def test_every_edge_case_passes_the_gate(bench: Any, kernel: str, name: str) -> None:
    params = bench.op.parse_params(EDGES[name])
    chosen = bench.kernel(kernel)
    if (reason := chosen.reason_unsupported(params)) is not None:
        assert kernel in {"fused_cuda@1", "fused_triton@3"}, reason
        pytest.skip(reason)
    accuracy = check_kernel(chosen, bench.op, params, split=bench.split, others=bench.collection.kernels, device=bench.device, seed=11)
    assert accuracy.passed, accuracy.reason
    assert not accuracy.interpreted


@pytest.mark.parametrize("name", ["tokens_257", "packed_gqa_neox", "float16"])
def test_the_compiled_split_chain_passes_the_gate(bench: Any, name: str) -> None:
    torch._dynamo.reset()
    params = bench.op.parse_params(EDGES[name])
    accuracy = check_kernel(bench.kernel("compiled@1"), bench.op, params, split=bench.split, device=bench.device, seed=11)
    assert accuracy.passed, accuracy.reason


@pytest.mark.parametrize("packed", [False, True], ids=["separate", "packed"])
@pytest.mark.parametrize("kernel", FUSED)
def test_torch_compile_takes_a_full_graph_to_the_same_result(bench: Any, parse: Any, kernel: str, packed: bool) -> None:
    torch._dynamo.reset()
    params = parse(heads=4, kv_heads=2, tokens=33, packed=packed)
    buffers = bench.buffers(params)
    arguments = dict(bench.op.arguments(params, buffers))
    rest = [arguments.pop(name) for name in TENSORS][2:]
    fused = bench.kernel(kernel)

    def block(source: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        source, key = source * 2, key * 2
        q, k = (source[:, :4], source[:, 4:6]) if packed else (source, key)
        fused(q, k, *rest, **arguments)
        return source + 1, k + 1

    sources = (buffers["qkv"], buffers["qkv"]) if packed else (buffers["q"], buffers["k"])
    eager, compiled = block(*sources), torch.compile(block, fullgraph=True)(*sources)
    for due, got in zip(eager, compiled, strict=True):
        assert torch.equal(got, due)


@pytest.mark.parametrize("layout", ["interleaved", "neox"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_the_rounded_norm_is_the_split_chains_bit_for_bit_on_many_rows(
    bench: Any, parse: Any, layout: str, dtype: str, head_dim: int
) -> None:
    """Another order of summation changes one bfloat16 output of some ten thousands, so small cases cannot show it."""
    params = parse(layout=layout, dtype=dtype, head_dim=head_dim, tokens=2048, heads=9, mode="round_norm")
    buffers = bench.buffers(params)
    fused, split = (bench.run(kernel, params, buffers) for kernel in ("fused_triton@2", "split_triton@1"))
    for name, value in fused.items():
        assert judge_bitwise(value, split[name]).equal == value.numel(), name


def test_dispatch_picks_a_fused_kernel_that_is_right(bench: Any, parse: Any, one_rounding: Any) -> None:
    for changes in ({}, {"layout": "neox", "rope_dim": 66, "head_dim": 96}):
        params = parse(**changes)
        buffers = bench.buffers(params)
        reference = bench.reference(params, buffers)
        call = dispatch("qknorm_rope", collection=bench.collection)
        arguments = bench.op.arguments(params, buffers)
        assert call.explain(**arguments).kernel.startswith("qknorm_rope/fused_"), "which one is the GPU's table to say"
        q, k = call(**arguments)
        assert q is arguments["q"]
        assert max(one_rounding(q, reference["q"]), one_rounding(k, reference["k"])) <= 1
        assert call.fallbacks == []


def test_dispatch_falls_back_with_the_reason_where_no_kernel_takes_the_shape(bench: Any, parse: Any) -> None:
    kept = {name: bench.collection.kernels[f"qknorm_rope/{name}"] for name in ("fused_cuda@1", "split_torch@1")}
    collection = Collection(bench.collection.roots, bench.collection.ops, {str(kernel.id): kernel for kernel in kept.values()})
    params = parse(layout="neox", rope_dim=66, head_dim=96)
    buffers = bench.buffers(params)
    due = bench.run("split_torch@1", params, buffers)
    call = dispatch("qknorm_rope", collection=collection)
    q, _ = call(**bench.op.arguments(params, buffers))
    assert torch.equal(q, due["q"])
    (fallback,) = call.fallbacks
    assert fallback.kernel == "qknorm_rope/split_torch@1"
    assert "qknorm_rope/fused_cuda@1: rope_dim 66: in the neox layout half of it must be a multiple of 8" in fallback.reason


def as_exact(output: torch.Tensor, aligned: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether `output` is as near to the reference as the aligned result.  Narrower loads add up a row in another order, so bits differ."""
    return judge_close(compare(output, reference), compare(aligned, reference), 1.1, floor_ulps(output.dtype)) is None


def unaligned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as a contiguous view that starts one element into its memory."""
    return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
@pytest.mark.parametrize("layout", ["interleaved", "neox"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_views_that_start_anywhere_give_the_right_result(bench: Any, parse: Any, kernel: str, layout: str, dtype: str) -> None:
    params = parse(layout=layout, dtype=dtype, heads=5, kv_heads=1, tokens=9, position_dtype="int32")
    buffers = bench.buffers(params)
    due = bench.run(kernel, params, buffers)
    reference = bench.reference(params, buffers)
    # One at a time, then all: each has a vector width of its own.
    for moved in [*((name,) for name in buffers), tuple(buffers)]:
        mixed = {name: unaligned(buffer) if name in moved else buffer.clone() for name, buffer in buffers.items()}
        arguments = bench.op.arguments(params, mixed)
        bench.kernel(kernel)(**arguments)
        for name, value in due.items():
            assert as_exact(arguments[name], value, reference[name]), f"{name} with {', '.join(moved)} unaligned"


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
def test_a_token_stride_of_an_odd_number_of_elements_gives_the_right_result(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(heads=5, tokens=9)
    buffers = bench.buffers(params)
    due = bench.run(kernel, params, buffers)
    arguments = dict(bench.op.arguments(params, buffers))
    for name in ("q", "k"):
        wide = torch.full((9, 5 * 128 + 1), 7.0, dtype=torch.bfloat16, device=bench.device)
        wide[:, :-1] = buffers[name].flatten(1)
        arguments[name] = wide[:, :-1].unflatten(1, (5, 128))
        assert arguments[name].stride(0) == 641
    bench.kernel(kernel)(**arguments)
    reference = bench.reference(params, buffers)
    for name, value in due.items():
        assert as_exact(arguments[name], value, reference[name]), name
        assert arguments[name]._base[:, -1].eq(7).all(), "the gap between tokens is left alone"


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
def test_offsets_beyond_two_to_the_31_elements_reach_the_right_token(bench: Any, parse: Any, kernel: str) -> None:
    tokens, width = 40_000, 432 * 128  # a packed projection of 4.4 GB
    assert (tokens - 1) * width > 2**31
    params = parse(tokens=8, heads=4)
    buffers = bench.buffers(params)
    packed = torch.empty(tokens, 432, 128, dtype=torch.bfloat16, device=bench.device)
    q, k = packed[:, :4], packed[:, 428:]
    q.zero_()
    k.zero_()
    q[-8:], k[-8:] = buffers["q"], buffers["k"]
    positions = torch.zeros(tokens, dtype=torch.int64, device=bench.device)
    positions[-8:] = buffers["positions"]
    due = bench.run(kernel, params, buffers)
    arguments = dict(bench.op.arguments(params, buffers))
    bench.kernel(kernel)(**(arguments | {"q": q, "k": k, "positions": positions}))
    assert torch.equal(q[-8:], due["q"])
    assert torch.equal(k[-8:], due["k"])
    assert q[:-8].eq(0).all()


def test_host_memory_is_refused_and_the_context_lives_on(bench: Any, parse: Any) -> None:
    params = parse()
    buffers = bench.buffers(params)
    for kernel in FUSED:
        on_host = {name: buffer.cpu() for name, buffer in buffers.items()}
        with pytest.raises(ValueError, match="argument q: found device cpu; accepted is a CUDA device"):
            bench.kernel(kernel)(**bench.op.arguments(params, on_host))
    torch.cuda.synchronize()
    assert bench.run("fused_cuda@1", params, buffers)["q"].isfinite().all()
