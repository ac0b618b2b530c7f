"""The float64 reference against the rotation written in other ways, whatever form q, k, the caches and the positions have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


def inputs(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7))))


@pytest.mark.parametrize("rope_dim", [None, 64, 2])
@pytest.mark.parametrize("caches", ["joint", "separate"])
def test_interleaved_pairs_turn_like_complex_numbers(op: Any, parse: Any, rope_dim: int | None, caches: str) -> None:
    params = parse(rope_dim=rope_dim, kv_heads=1, position_offset=5, packed=True, caches=caches, rank=4, batch=2)
    arguments = inputs(op, params)
    half = params.rotary // 2
    both = [arguments["cos_cache"], arguments["sin_cache"]] if caches == "separate" else arguments["cos_cache"].split(half, dim=-1)
    cos, sin = (cache.double()[arguments["positions"] + 5].view(2, 3, 1, half) for cache in both)
    for name, output in op.reference(params, arguments).items():
        x = arguments[name].double()
        pairs = torch.view_as_complex(x[..., : params.rotary].unflatten(-1, (half, 2)).contiguous())
        due = torch.cat((torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2), x[..., params.rotary :]), dim=-1)
        torch.testing.assert_close(output, due, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rope_dim", [None, 64, 2])
def test_neox_pairs_turn_by_rotate_half(op: Any, parse: Any, rope_dim: int | None) -> None:
    params = parse(layout="neox", rope_dim=rope_dim, dtype="float16", positions="int32", rank=2)
    arguments = inputs(op, params)
    half = params.rotary // 2
    angles = arguments["cos_cache"].double()[arguments["positions"].long()].unsqueeze(1)
    cos, sin = angles[..., :half].repeat(1, 1, 2), angles[..., half:].repeat(1, 1, 2)
    for name, output in op.reference(params, arguments).items():
        x = arguments[name].double().unflatten(-1, (-1, 128))
        turning = x[..., : params.rotary]
        rotate_half = torch.cat((-turning[..., half:], turning[..., :half]), dim=-1)
        due = torch.cat((turning * cos + rotate_half * sin, x[..., params.rotary :]), dim=-1).flatten(1)
        torch.testing.assert_close(output, due, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("layout", ["interleaved", "neox"])
@pytest.mark.parametrize("positions", ["index", "int64"])
def test_each_row_is_the_definition_computed_element_by_element(op: Any, parse: Any, layout: str, positions: str) -> None:
    params = parse(layout=layout, tokens=2, batch=2, heads=1, head_dim=64, rope_dim=48, position_offset=3, rank=4, positions=positions)
    arguments = inputs(op, params)
    reference, table = op.reference(params, arguments)["q"], arguments["cos_cache"].double().tolist()
    for sample in range(2):
        for token in range(2):
            # Positions start again with each sample; a row of the cache holds 24 cosines, then 24 sines.
            due = arguments["q"][sample, token, 0].double().tolist()
            for pair in range(24):
                first, second = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, pair + 24)
                cos, sin = table[token + 3][pair], table[token + 3][pair + 24]
                a, b = due[first], due[second]
                due[first], due[second] = a * cos - b * sin, b * cos + a * sin
            assert reference[sample, token, 0].tolist() == pytest.approx(due, rel=1e-5, abs=1e-6 * max(map(abs, due)))


def test_a_rotation_scales_every_pairs_length_by_the_tables_amplitude(op: Any, parse: Any) -> None:
    params = parse(rope_dim=64, position_offset=11)
    arguments = inputs(op, params)
    turned, before = op.reference(params, arguments)["k"], arguments["k"].double()
    after, length = (x[..., :64].unflatten(-1, (32, 2)).norm(dim=-1) for x in (turned, before))
    cos, sin = arguments["cos_cache"].double()[arguments["positions"] + 11].chunk(2, dim=-1)
    torch.testing.assert_close(after, length * torch.hypot(cos, sin).unsqueeze(1), rtol=1e-6, atol=0)
    assert torch.equal(turned[..., 64:], before[..., 64:])
    assert not torch.equal(turned, before)


def test_the_forms_of_a_call_compute_the_same(op: Any, parse: Any) -> None:
    outputs = []
    for rank in (2, 3, 4):
        for caches in ("joint", "separate"):
            params = parse(rank=rank, caches=caches, packed=True)
            outputs.append(op.reference(params, inputs(op, params))["q"].flatten())
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_the_reference_is_float64_and_leaves_its_arguments_alone(op: Any, parse: Any) -> None:
    arguments = inputs(op, parse(packed=True))
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    outputs = op.reference(parse(packed=True), arguments)
    assert [output.dtype for output in outputs.values()] == [torch.float64] * 2
    for name, value in before.items():
        assert torch.equal(arguments[name], value), name
