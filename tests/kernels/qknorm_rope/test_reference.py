"""The float64 reference against the operator's definition written in three other ways."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


def inputs(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7))))


def normalised(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    wide = x.double()
    y = wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight.double()


@pytest.mark.parametrize("rope_dim", [None, 64, 2])
def test_interleaved_pairs_turn_like_complex_numbers(op: Any, parse: Any, rope_dim: int | None) -> None:
    params = parse(rope_dim=rope_dim, kv_heads=1, position_offset=5, packed=True)
    arguments = inputs(op, params)
    angles = arguments["cos_sin_cache"].double()[arguments["positions"] + 5].unsqueeze(1)
    half = params.rotary // 2
    turn = torch.complex(angles[..., :half], angles[..., half:])
    for name, output in op.reference(params, arguments).items():
        y = normalised(arguments[name], arguments[f"{name}_weight"], params.eps)
        pairs = torch.view_as_complex(y[..., : params.rotary].unflatten(-1, (half, 2)).contiguous())
        due = torch.cat((torch.view_as_real(pairs * turn).flatten(-2), y[..., params.rotary :]), dim=-1)
        torch.testing.assert_close(output, due, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rope_dim", [None, 64, 2])
def test_neox_pairs_turn_by_rotate_half(op: Any, parse: Any, rope_dim: int | None) -> None:
    params = parse(layout="neox", rope_dim=rope_dim, affine=False, dtype="float16", position_dtype="int32")
    arguments = inputs(op, params)
    half = params.rotary // 2
    angles = arguments["cos_sin_cache"].double()[arguments["positions"].long()].unsqueeze(1)
    cos, sin = angles[..., :half].repeat(1, 1, 2), angles[..., half:].repeat(1, 1, 2)
    for name, output in op.reference(params, arguments).items():
        y = normalised(arguments[name], None, params.eps)
        turning = y[..., : params.rotary]
        rotate_half = torch.cat((-turning[..., half:], turning[..., :half]), dim=-1)
        due = torch.cat((turning * cos + rotate_half * sin, y[..., params.rotary :]), dim=-1)
        torch.testing.assert_close(output, due, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("layout", ["interleaved", "neox"])
def test_each_row_is_the_definition_computed_element_by_element(op: Any, parse: Any, layout: str) -> None:
    params = parse(layout=layout, tokens=2, batch=2, heads=2, kv_heads=1, head_dim=64, rope_dim=48, eps=1e-5, position_offset=3)
    arguments = inputs(op, params)
    reference, table = op.reference(params, arguments), arguments["cos_sin_cache"].double().tolist()
    for name, heads in (("q", 2), ("k", 1)):
        x, weight = arguments[name].double().tolist(), arguments[f"{name}_weight"].double().tolist()
        for row in range(4):
            # Positions start again with each sample; a row of the cache holds 24 cosines, then 24 sines.
            position = row % 2 + 3
            for head in range(heads):
                values = x[row][head]
                scale = 1.0 / math.sqrt(sum(value * value for value in values) / 64 + 1e-5)
                due = [value * scale * factor for value, factor in zip(values, weight, strict=True)]
                for pair in range(24):
                    first, second = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, pair + 24)
                    cos, sin = table[position][pair], table[position][pair + 24]
                    a, b = due[first], due[second]
                    due[first], due[second] = a * cos - b * sin, b * cos + a * sin
                assert reference[name][row, head].tolist() == pytest.approx(due, rel=1e-5, abs=1e-6 * max(map(abs, due)))


def test_the_reference_is_float64_and_leaves_its_arguments_alone(op: Any, parse: Any) -> None:
    arguments = inputs(op, parse(packed=True))
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    outputs = op.reference(parse(packed=True), arguments)
    assert [output.dtype for output in outputs.values()] == [torch.float64] * 2
    for name, value in before.items():
        assert torch.equal(arguments[name], value), name


def test_the_numerical_mode_is_the_kernels_business(op: Any, parse: Any) -> None:
    arguments = inputs(op, parse())
    plain, rounded = (op.reference(parse(mode=mode), arguments) for mode in ("default", "round_norm"))
    assert torch.equal(plain["q"], rounded["q"])


def test_packed_arguments_are_views_of_one_projection(op: Any, parse: Any) -> None:
    params = parse(heads=4, kv_heads=2, packed=True)
    buffers = op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0))
    arguments = op.arguments(params, buffers)
    assert buffers["qkv"].shape == (3, 8, 128)
    assert arguments["q"].stride() == arguments["k"].stride() == (8 * 128, 128, 1)
    assert arguments["q"].data_ptr() == buffers["qkv"].data_ptr()
    assert arguments["k"].data_ptr() == buffers["qkv"].data_ptr() + 4 * 128 * 2
