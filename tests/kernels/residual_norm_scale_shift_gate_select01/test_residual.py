"""What the residual adds: v, rounded once when it is returned and not at all for the norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@4")
ACTIVATIONS = ("residual", "x", "residual_gate")


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
def test_v_is_torchs_float32_chain_rounded_once_to_the_bit(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(batch=2, tokens=8, hidden=264)
    arguments = bench.op.arguments(params, bench.buffers(params))
    residual, x, gate = (arguments[name].float() for name in ACTIVATIONS)
    assert torch.equal(bench.kernel(kernel)(**arguments)[1], (residual + gate * x).bfloat16())


def statistics_of(bench: Any, parse: Any, v_of: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """Rows whose deviations rounding to bfloat16 wipes out: 256 plus or minus a quarter.  y of the plain op on `v_of(v)`."""
    params = parse(tokens=4, hidden=64, dtype="float32")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    v = 256 + 0.25 * torch.where(torch.arange(64, device=bench.device) % 2 == 0, 1.0, -1.0).expand(1, 4, 64)
    plain = {name: value for name, value in arguments.items() if name not in ACTIVATIONS}
    y = bench.collection.kernel("norm_scale_shift_gate_select01/fused_triton@2")(x=v_of(v).contiguous(), **plain)[0]
    sixteen = {name: value.bfloat16() if torch.is_tensor(value) and value.is_floating_point() else value for name, value in plain.items()}
    ones = torch.ones(1, 4, 64, dtype=torch.bfloat16, device=bench.device)
    return y, sixteen | {"residual": 256 * ones, "x": (v - 256).bfloat16(), "residual_gate": ones}


@pytest.mark.parametrize("kernel", FUSED)
def test_the_norm_takes_the_unrounded_v(bench: Any, parse: Any, kernel: str) -> None:
    due, arguments = statistics_of(bench, parse, lambda v: v)
    y, v, _ = bench.kernel(kernel)(**arguments)
    assert v.eq(256).all(), "rounded, all of v is one value"
    torch.testing.assert_close(y.float(), due, rtol=0.02, atol=0.02)


def test_a_norm_of_the_rounded_v_would_be_seen(bench: Any, parse: Any) -> None:
    """The inputs above on the split chain, which has nothing but the rounded v."""
    due, arguments = statistics_of(bench, parse, lambda v: v)
    y, _, _ = bench.kernel("split_torch@1")(**arguments)
    rounded, _ = statistics_of(bench, parse, lambda v: v.bfloat16().float())
    torch.testing.assert_close(y.float(), rounded, rtol=0.02, atol=0.02)
    assert (y.float() - due).abs().max() > 0.5


@pytest.mark.parametrize("kernel", FUSED)
def test_in_float32_y_is_the_plain_op_of_v_to_the_bit(bench: Any, parse: Any, kernel: str) -> None:
    """v has nothing to round there."""
    params = parse(batch=2, hidden=264, dtype="float32", affine=True, index="alternating")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    y, v, gate_out = bench.kernel(kernel)(**arguments)
    plain = {name: value for name, value in arguments.items() if name not in ACTIVATIONS}
    due = bench.collection.kernel(f"norm_scale_shift_gate_select01/{kernel}")(x=v, **plain)
    assert torch.equal(y, due[0])
    assert torch.equal(gate_out, due[1])


@pytest.mark.parametrize("magnitude", [1.0, 1e3])
def test_v_of_a_float16_case_fits_float16(bench: Any, parse: Any, magnitude: float) -> None:
    """Else the split chain would have nothing finite to be compared with."""
    params = parse(tokens=64, hidden=1024, dtype="float16")
    buffers = bench.buffers(params, magnitude=magnitude)
    assert bench.run("split_torch@1", params, buffers)["y"].isfinite().all()


@pytest.mark.parametrize("kernel", FUSED)
def test_a_v_that_overflows_its_dtype_is_inf_and_is_normed_as_it_is(bench: Any, parse: Any, one_rounding: Any, kernel: str) -> None:
    params = parse(hidden=64, dtype="float16")
    buffers = {name: buffer.clone() for name, buffer in bench.buffers(params).items()}
    buffers["residual"][0, 1, 5] = buffers["x"][0, 1, 5] = 65504
    buffers["residual_gate"][0, 1, 5] = 2
    reference, found = bench.reference(params, buffers), bench.run(kernel, params, buffers)
    assert found["v"][0, 1, 5].isinf()
    assert found["v"].isinf().sum() == 1
    assert one_rounding(found["y"], reference["y"]) <= 1
