"""Every Triton kernel on small cases: on a GPU where there is one, in the interpreter elsewhere.

All of them promise the rotation in torch operations bit for bit, which is stricter than any bound on errors; the chain itself is held
to one rounding.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusebench.accuracy import check_kernel, judge_bitwise
from helpers.matrices import few

NEOX = {"layout": "neox"}
KERNELS = ("fused_triton@1", "fused_triton@2", "fused_triton@3", "split_triton@1")

CASES: dict[str, dict[str, Any]] = {
    "interleaved": {},
    "neox": NEOX,
    "D 64": {"head_dim": 64, "heads": 16},
    "D 80": {"head_dim": 80},
    "D 80 neox R 32": NEOX | {"head_dim": 80, "rope_dim": 32},
    "D 96 R 66": {"head_dim": 96, "rope_dim": 66},
    "D 96 neox R 66": NEOX | {"head_dim": 96, "rope_dim": 66},
    "D 256 neox R 128 packed": NEOX | {"head_dim": 256, "rope_dim": 128, "packed": True},
    "D 320": {"head_dim": 320},
    "D 320 neox packed": NEOX | {"head_dim": 320, "packed": True},
    "R 2": {"rope_dim": 2},
    "R 2 neox": NEOX | {"rope_dim": 2},
    "five heads": {"heads": 5, "tokens": 4},
    "GQA packed": {"heads": 8, "kv_heads": 4, "packed": True},
    "MQA neox": NEOX | {"heads": 8, "kv_heads": 1},
    "no k": {"kv_heads": 0},
    "no k, 2-D neox": NEOX | {"kv_heads": 0, "rank": 2, "packed": True},
    "2-D packed": {"rank": 2, "packed": True, "kv_heads": 2},
    "4-D packed, two samples": {"rank": 4, "packed": True, "batch": 2, "tokens": 3},
    "samples of a token": {"rank": 4, "batch": 3, "tokens": 1, "head_dim": 64},
    "samples of a token, by index": NEOX | {"rank": 4, "batch": 3, "tokens": 1, "positions": "index", "caches": "separate"},
    "4-D by index": {"rank": 4, "batch": 2, "tokens": 2, "positions": "index", "caches": "separate"},
    "by index, offset": NEOX | {"positions": "index", "position_offset": 9, "tokens": 3},
    "separate neox": NEOX | {"caches": "separate", "rope_dim": 64},
    "int32 positions": {"positions": "int32", "position_offset": 1, "batch": 2},
    "16-bit caches": {"cache_dtype": "activation", "caches": "separate"},
    "float16 neox, its cache": NEOX | {"dtype": "float16", "cache_dtype": "activation", "packed": True},
    "float32": {"dtype": "float32"},
    "float32 neox R 64": NEOX | {"dtype": "float32", "rope_dim": 64},
}

FEW = (
    "interleaved", "neox", "D 96 R 66", "D 256 neox R 128 packed", "R 2 neox", "five heads", "no k, 2-D neox", "4-D packed, two samples",
    "samples of a token, by index", "4-D by index", "16-bit caches", "float16 neox, its cache", "float32 neox R 64",
)  # fmt: skip


def case(parse: Any, name: str, **changes: Any) -> Any:
    return parse(**({"tokens": 2, "heads": 4, "position_offset": 1} | CASES[name] | changes))


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("fused_triton@2", "interleaved"),
        ("fused_triton@2", "D 96 neox R 66"),
        ("fused_triton@2", "no k"),
        ("fused_triton@2", "float32"),
        ("fused_triton@1", "4-D packed, two samples"),
        ("split_triton@1", "4-D by index"),
    ],
)
def test_the_kernels_pass_the_gate(bench: Any, parse: Any, kernel: str, name: str) -> None:
    params = case(parse, name, heads=2)
    checked = bench.kernel(kernel)
    accuracy = check_kernel(checked, bench.op, params, split=bench.split, others=bench.collection.kernels, device=bench.device, seed=3)
    assert accuracy.passed, accuracy.reason
    assert accuracy.contract == "bitwise(rotary_embedding/split_torch@1)"
    assert accuracy.equal_to_split == 1


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", few(CASES, *FEW))
def test_a_kernel_equals_the_rotation_in_torch_operations_bit_for_bit(bench: Any, parse: Any, kernel: str, name: str) -> None:
    params = case(parse, name)
    for magnitude in (1.0, 1e-3, 1e3):
        buffers = bench.buffers(params, magnitude=magnitude)
        fused, split = run(bench, kernel, params, buffers), run(bench, "split_torch@1", params, buffers)
        assert fused.keys() == split.keys()
        for output, value in fused.items():
            assert not judge_bitwise(value, split[output]).first_difference, (output, magnitude)


@pytest.mark.parametrize("name", CASES)
def test_the_chain_rounds_once(bench: Any, parse: Any, one_rounding: Any, name: str) -> None:
    params = case(parse, name)
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)
    for output, value in run(bench, "split_torch@1", params, buffers).items():
        assert one_rounding(value, reference[output]) <= 1, output
        rotated = bench.op.arguments(params, buffers)[output]
        assert not torch.equal(value, rotated), "a rotation by no angle would prove nothing"


def run(bench: Any, kernel: str, params: Any, buffers: Any) -> dict[str, torch.Tensor]:
    """Outputs of the kernel on a copy of `buffers`, as many as the case has."""
    from fusebench.accuracy.execution import run_plain

    return dict(zip(bench.op.outputs_of(params), run_plain(bench.kernel(kernel), bench.op, params, buffers), strict=True))


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    head_dim = draw(st.sampled_from([64, 80, 96, 128, 256, 320]))
    kv_heads = draw(st.integers(0, 3))
    rank = draw(st.sampled_from([2, 3, 4]))
    batch = draw(st.integers(1, 2))
    return {
        "batch": batch,
        "tokens": draw(st.integers(1, 3)),
        "heads": max(1, kv_heads) * draw(st.integers(1, 4)),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "rope_dim": 2 * draw(st.integers(1, head_dim // 2)),
        "layout": draw(st.sampled_from(["interleaved", "neox"])),
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "rank": rank,
        "caches": draw(st.sampled_from(["joint", "separate"])),
        "cache_dtype": draw(st.sampled_from(["float32", "activation"])),
        "positions": draw(st.sampled_from(["int32", "int64", "index"] if rank == 4 or batch == 1 else ["int32", "int64"])),
        "position_offset": draw(st.integers(0, 40)),
        "packed": draw(st.booleans()),
    }


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_any_shape_is_rotated_alike_by_every_kernel(bench: Any, parse: Any, one_rounding: Any, shape: dict[str, Any], seed: int) -> None:
    params = parse(**shape)
    buffers = bench.buffers(params, seed)
    reference = bench.reference(params, buffers)
    split = run(bench, "split_torch@1", params, buffers)
    for output, value in split.items():
        assert one_rounding(value, reference[output]) <= 1, output
    for kernel in KERNELS:
        for output, value in run(bench, kernel, params, buffers).items():
            assert not judge_bitwise(value, split[output]).first_difference, (kernel, output)


SPECIAL = {"NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layout", ["interleaved", "neox"])
@pytest.mark.parametrize("special", SPECIAL)
def test_nan_and_inf_stay_in_their_pair_and_zeros_stay_zero(bench: Any, parse: Any, kernel: str, layout: str, special: str) -> None:
    params = parse(layout=layout, rope_dim=66, tokens=2, position_offset=1)
    buffers = bench.buffers(params)
    q, k = buffers["q"], buffers["k"]
    q[0, 1, 5] = SPECIAL[special]
    k[1, 0, 100] = SPECIAL[special]  # past R: reaches nobody
    q[1, 2] = 0.0
    outputs = run(bench, kernel, params, buffers)
    assert outputs["q"][1, 2].eq(0).all()
    touched = [4, 5] if layout == "interleaved" else [5, 38]
    assert outputs["q"].isfinite().logical_not().nonzero().tolist() == [[0, 1, column] for column in touched]
    assert outputs["k"].isfinite().logical_not().nonzero().tolist() == [[1, 0, 100]]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_an_empty_batch_is_no_launch(bench: Any, kernel: str, rank: int) -> None:
    shape = {2: (0, 192), 3: (0, 3, 64), 4: (2, 0, 3, 64)}[rank]
    empty, cache = torch.ones(shape, device=bench.device), torch.ones(1, 64, device=bench.device)
    bench.kernel(kernel)(empty, empty.clone(), cache, None, None, head_dim=64)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_packed_projections_values_and_what_is_not_rotated_are_left_alone(bench: Any, parse: Any, kernel: str, rank: int) -> None:
    params = parse(heads=4, kv_heads=2, head_dim=80, rope_dim=32, packed=True, rank=rank, position_offset=1)
    buffers = {name: buffer.clone() for name, buffer in bench.buffers(params).items()}
    before = buffers["qkv"].clone()
    bench.kernel(kernel)(**bench.op.arguments(params, buffers))
    assert torch.equal(buffers["qkv"][:, 6:], before[:, 6:])
    assert torch.equal(buffers["qkv"][..., 32:], before[..., 32:])
    assert not torch.equal(buffers["qkv"][:, :6, :32], before[:, :6, :32])


@pytest.mark.parametrize("kernel", KERNELS)
def test_samples_may_lie_inside_tokens_or_in_longer_ones(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(rank=4, batch=2, tokens=3, kv_heads=0, position_offset=1)
    buffers = bench.buffers(params)
    due = run(bench, kernel, params, buffers)["q"]
    arguments = dict(bench.op.arguments(params, {name: buffer.clone() for name, buffer in buffers.items()}))
    inside = arguments["q"].transpose(0, 1).contiguous().transpose(0, 1)
    longer = torch.zeros(2, 7, *inside.shape[2:], dtype=inside.dtype, device=inside.device)
    longer[:, 4:] = inside
    for q in (inside, longer[:, 4:]):
        bench.kernel(kernel)(**(arguments | {"q": q}))
        assert torch.equal(q, due)
    assert longer[:, :4].eq(0).all()
