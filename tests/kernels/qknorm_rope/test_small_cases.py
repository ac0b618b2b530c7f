"""Every Triton kernel on small cases: on a GPU where there is one, in the interpreter elsewhere.

The interpreter needs milliseconds for each program, so the accuracy gate with its many draws takes a few of the cases; all of them
are held to the elementwise bound of one rounding, which is stricter, on a single draw.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusebench.accuracy import check_kernel, compare, judge_bitwise, judge_close, merge
from fusebench.accuracy.contracts import floor_ulps
from fusebench.registry.launching import interpreting
from helpers.matrices import few

NEOX = {"layout": "neox"}
ROUND = {"mode": "round_norm"}

# Eight heads fill a program of fused_triton@2 and five leave part of one empty; two tokens make the 16 rows that bias is judged on.
CASES: dict[str, dict[str, Any]] = {
    "interleaved": {},
    "neox": NEOX,
    "D 64": {"head_dim": 64, "heads": 16},
    "D 64 neox": NEOX | {"head_dim": 64, "heads": 16},
    "D 80": {"head_dim": 80},
    "D 80 neox R 32": NEOX | {"head_dim": 80, "rope_dim": 32},
    "D 96 R 66": {"head_dim": 96, "rope_dim": 66},
    "D 96 neox R 66": NEOX | {"head_dim": 96, "rope_dim": 66},
    "D 256": {"head_dim": 256},
    "D 256 neox R 128 packed": NEOX | {"head_dim": 256, "rope_dim": 128, "packed": True},
    "R 64": {"rope_dim": 64},
    "R 2": {"rope_dim": 2},
    "R 2 neox": NEOX | {"rope_dim": 2},
    "five heads": {"heads": 5, "tokens": 4},
    "GQA packed": {"heads": 8, "kv_heads": 4, "packed": True},
    "MQA neox": NEOX | {"heads": 8, "kv_heads": 1},
    "int32 positions": {"position_dtype": "int32", "position_offset": 1},
    "offset, two samples": NEOX | {"position_offset": 512, "batch": 2, "tokens": 1},
    "16-bit cache": {"cache_dtype": "activation"},
    "no weights": {"affine": False, "eps": 1e-5},
    "no weights neox": NEOX | {"affine": False},
    "float16": {"dtype": "float16"},
    "float16 neox, its cache": NEOX | {"dtype": "float16", "cache_dtype": "activation", "packed": True},
    "float32": {"dtype": "float32"},
    "float32 neox R 64": NEOX | {"dtype": "float32", "rope_dim": 64},
}

FEW = (
    "interleaved", "neox", "D 64 neox", "D 96 neox R 66", "D 256 neox R 128 packed", "R 2", "five heads", "MQA neox", "offset, two samples",
    "16-bit cache", "float16 neox, its cache", "float32 neox R 64",
)  # fmt: skip


def case(parse: Any, name: str, **changes: Any) -> Any:
    # The offset is there because position 0 turns by nothing.
    return parse(**({"tokens": 2, "heads": 8, "position_offset": 3} | CASES[name] | changes))


@pytest.mark.parametrize(
    "name",
    few(
        [
            "interleaved", "neox", "D 64", "D 96 neox R 66", "D 256 neox R 128 packed", "R 64", "GQA packed", "int32 positions",
            "no weights", "float16 neox, its cache", "float32",
        ],
        "interleaved", "D 96 neox R 66", "GQA packed", "no weights", "float16 neox, its cache", "float32",
    ),
)  # fmt: skip
def test_the_tuned_kernel_passes_the_gate(bench: Any, parse: Any, name: str) -> None:
    params = case(parse, name)
    kernel = bench.kernel("fused_triton@2")
    accuracy = check_kernel(kernel, bench.op, params, split=bench.split, others=bench.collection.kernels, device=bench.device, seed=3)
    assert accuracy.passed, accuracy.reason
    assert accuracy.contract == "close(1.5x split)"


@pytest.mark.parametrize("kernel", ["fused_triton@1", "fused_triton@2", "fused_triton@3"])
@pytest.mark.parametrize("name", CASES)
def test_a_fused_kernel_rounds_once(bench: Any, parse: Any, one_rounding: Any, kernel: str, name: str) -> None:
    # A token is enough for all but the strides, which differ where the heads do.
    params = case(parse, name, tokens=2 if "kv_heads" in CASES[name] else 1)
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)
    for output, value in bench.run(kernel, params, buffers).items():
        assert one_rounding(value, reference[output]) <= 1, output


def promises_bits(bench: Any, params: Any) -> bool:
    return str(bench.kernel("fused_triton@2").contract_for(params)) == "bitwise(qknorm_rope/split_triton@1)"


@pytest.mark.parametrize("name", few(CASES, *FEW))
def test_rounding_the_norm_gives_the_split_chain_bit_for_bit_where_promised(bench: Any, parse: Any, name: str) -> None:
    params = case(parse, name, mode="round_norm")
    # Not promised, and not so on a GPU: partly rotated neox heads.
    assert promises_bits(bench, params) == (params.layout == "interleaved" or params.rotary == params.head_dim)
    assert not promises_bits(bench, case(parse, name))
    if not promises_bits(bench, params) and not interpreting():
        return
    for magnitude in (1.0, 1e-3, 1e3):
        buffers = bench.buffers(params, magnitude=magnitude)
        fused, split = (bench.run(kernel, params, buffers) for kernel in ("fused_triton@2", "split_triton@1"))
        for output, value in fused.items():
            assert not judge_bitwise(value, split[output]).first_difference, (output, magnitude)


@pytest.mark.parametrize("kernel", ["fused_triton@1", "split_triton@1"])
@pytest.mark.parametrize("layout", ["interleaved", "neox"])
def test_two_roundings_keep_to_the_split_chains_error(bench: Any, parse: Any, kernel: str, layout: str) -> None:
    params = parse(mode="round_norm", layout=layout, tokens=4, heads=4)
    found: dict[str, tuple[list[Any], list[Any]]] = {"q": ([], []), "k": ([], [])}
    for seed in range(2):
        buffers = bench.buffers(params, seed)
        reference, split, outputs = (
            bench.reference(params, buffers),
            bench.run("split_torch@1", params, buffers),
            bench.run(kernel, params, buffers),
        )
        for name, (ours, due) in found.items():
            ours.append(compare(outputs[name], reference[name]))
            due.append(compare(split[name], reference[name]))
    for name, (ours, due) in found.items():
        assert judge_close(merge(ours), merge(due), 1.5, floor_ulps(torch.bfloat16)) is None, name


@pytest.mark.parametrize("kernel", ["fused_triton@1", "fused_triton@2", "fused_triton@3"])
def test_the_rounded_norm_is_another_result_than_the_default(bench: Any, parse: Any, kernel: str) -> None:
    buffers = bench.buffers(parse())
    default, rounded = (bench.run(kernel, parse(mode=mode), buffers) for mode in ("default", "round_norm"))
    assert not torch.equal(default["q"], rounded["q"])


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    head_dim = draw(st.sampled_from([64, 80, 96, 128, 256]))
    kv_heads = draw(st.integers(1, 3))
    return {
        "tokens": draw(st.integers(1, 3)),
        "heads": kv_heads * draw(st.integers(1, 4)),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "rope_dim": 2 * draw(st.integers(1, head_dim // 2)),
        "layout": draw(st.sampled_from(["interleaved", "neox"])),
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "cache_dtype": draw(st.sampled_from(["float32", "activation"])),
        "position_dtype": draw(st.sampled_from(["int32", "int64"])),
        "position_offset": draw(st.integers(0, 40)),
        "packed": draw(st.booleans()),
        "affine": draw(st.booleans()),
    }


# On a GPU every shape is four compilations.
@settings(max_examples=25 if interpreting() else 8, deadline=None, derandomize=True, database=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_any_shape_is_rounded_once_and_its_rounded_norm_is_as_promised(
    bench: Any, parse: Any, one_rounding: Any, shape: dict[str, Any], seed: int
) -> None:
    params = parse(**shape)
    buffers = bench.buffers(params, seed)
    reference = bench.reference(params, buffers)
    for output, value in bench.run("fused_triton@2", params, buffers).items():
        assert one_rounding(value, reference[output]) <= 1, output
    rounded = parse(**shape, mode="round_norm")
    fused, split = (bench.run(kernel, rounded, buffers) for kernel in ("fused_triton@2", "split_triton@1"))
    for output, value in fused.items():
        assert torch.equal(value, split[output]) or not promises_bits(bench, rounded), output


def test_more_than_one_rounding_is_seen(bench: Any, parse: Any, one_rounding: Any) -> None:
    """The measure that the tests above rely on, on a planted defect: a second rounding, and truncation."""
    params = parse()
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)["q"]
    assert one_rounding(reference.bfloat16(), reference) <= 1
    assert one_rounding(bench.run("split_torch@1", params, buffers)["q"], reference) > 1
    truncated = (reference.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    assert one_rounding(truncated, reference) > 1


SPECIAL = {"NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}


@pytest.mark.parametrize("kernel", ["fused_triton@1", "fused_triton@2", "fused_triton@3", "split_triton@1"])
@pytest.mark.parametrize("layout", ["interleaved", "neox"])
@pytest.mark.parametrize("special", SPECIAL)
def test_nan_and_inf_stay_in_their_head_and_zeros_stay_zero(bench: Any, parse: Any, kernel: str, layout: str, special: str) -> None:
    params = parse(layout=layout, rope_dim=64, tokens=2)
    buffers = bench.buffers(params)
    q, k = buffers["q"], buffers["k"]
    q[0, 1, 5] = SPECIAL[special]  # rotated: reaches its partner
    k[1, 0, 100] = SPECIAL[special]  # past R: reaches nobody but, as NaN, the whole row's norm
    q[1, 2] = 0.0
    reference = bench.reference(params, buffers)
    outputs = bench.run(kernel, params, buffers)
    assert outputs["q"][1, 2].eq(0).all()
    for name, value in outputs.items():
        torch.testing.assert_close(value.isnan(), reference[name].isnan(), msg=f"NaN of {name}")
        torch.testing.assert_close(value.isinf(), reference[name].isinf(), msg=f"Inf of {name}")
    torch.testing.assert_close(outputs["q"][1].double(), reference["q"][1], rtol=0.02, atol=0.02, msg="the row's neighbours are right")
    if special == "NaN":
        assert outputs["k"][1, 0].isnan().all()
    else:
        # Infinity over infinity is NaN; everything else of the row is divided by infinity.
        assert outputs["k"][1, 0].isnan().nonzero().flatten().tolist() == [100]
        assert outputs["q"][0, 1].isnan().nonzero().flatten().tolist() == ([4, 5] if layout == "interleaved" else [5, 37])


@pytest.mark.parametrize("kernel", ["fused_triton@1", "fused_triton@2", "fused_triton@3", "split_triton@1"])
def test_an_empty_batch_is_no_launch(bench: Any, kernel: str) -> None:
    empty = torch.ones(0, 3, 64, device=bench.device)
    cache, positions = torch.ones(1, 64, device=bench.device), torch.zeros(0, dtype=torch.int64, device=bench.device)
    bench.kernel(kernel)(empty, empty.clone(), None, None, cache, positions)


@pytest.mark.parametrize("kernel", ["fused_triton@1", "fused_triton@2", "fused_triton@3", "split_triton@1"])
def test_a_packed_projections_values_and_gaps_are_left_alone(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(heads=4, kv_heads=2, head_dim=80, packed=True)
    buffers = {name: buffer.clone() for name, buffer in bench.buffers(params).items()}
    values = buffers["qkv"][:, 6:].clone()
    before = buffers["qkv"][:, :6].clone()
    bench.kernel(kernel)(**bench.op.arguments(params, buffers))
    assert torch.equal(buffers["qkv"][:, 6:], values)
    assert not torch.equal(buffers["qkv"][:, :6], before)


@pytest.mark.parametrize("kernel", ["fused_triton@1", "fused_triton@2", "fused_triton@3", "split_triton@1"])
def test_a_single_head_may_have_any_head_stride(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(kv_heads=1, tokens=3)
    buffers = bench.buffers(params)
    due = bench.run(kernel, params, buffers)
    arguments = dict(bench.op.arguments(params, {name: buffer.clone() for name, buffer in buffers.items()}))
    arguments["k"] = torch.stack(tuple(buffers["k"].clone()), dim=1).transpose(0, 1)
    assert arguments["k"].stride() == (128, 384, 1)
    bench.kernel(kernel)(**arguments)
    assert torch.equal(arguments["k"], due["k"])
