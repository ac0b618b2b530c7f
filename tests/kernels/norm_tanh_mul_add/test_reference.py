"""The float64 reference against the operator's definition, element by element, and the models' own chain against it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")
B, S, D, F = 2, 4, 16, 2


def inputs(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7))))


def place(form: str, batch: int, token: int, channel: int) -> tuple[int, ...]:
    return {"scalar": (0,), "channel": (channel,), "batch": (batch, 0, channel), "token": (batch, token, channel),
            "frame": (batch, token // (S // F), 0, channel)}[form]  # fmt: skip


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize(("residual", "gate"), [("token", "batch"), ("scalar", "token"), ("channel", "frame"), ("batch", "scalar"),
                                                ("frame", "channel")])  # fmt: skip
def test_y_is_the_definition_computed_element_by_element(op: Any, parse: Any, residual: str, gate: str, norm: str) -> None:
    frames = F if "frame" in (residual, gate) else 1
    params = parse(batch=B, tokens=S, hidden=D, residual=residual, modulation=gate, frames=frames, norm=norm, affine=True)
    arguments = inputs(op, params)
    y = op.reference(params, arguments)["y"]
    assert y.dtype == torch.float64
    for batch in range(B):
        for token in range(S):
            row = [float(value) for value in arguments["x"][batch, token]]
            mean = sum(row) / D if norm == "layer" else 0.0
            deviation = math.sqrt(sum((value - mean) ** 2 for value in row) / D + params.eps)
            for channel in range(D):
                normed = (row[channel] - mean) / deviation * float(arguments["weight"][channel])
                if norm == "layer":
                    normed += float(arguments["bias"][channel])
                gated = math.tanh(float(arguments["gate"][place(gate, batch, token, channel)])) * normed
                due = float(arguments["residual"][place(residual, batch, token, channel)]) + gated
                assert math.isclose(float(y[batch, token, channel]), due, rel_tol=1e-12, abs_tol=1e-12)


def test_the_split_chain_rounds_where_z_images_block_does(collection: Any, op: Any, parse: Any) -> None:
    """Its lines written out: the gate's tanh, the norm, their product and the sum, each in bfloat16."""
    arguments = inputs(op, parse(affine=True, tokens=8))
    residual, x, gate = (arguments[name] for name in ("residual", "x", "gate"))
    normed = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * arguments["weight"].float()).bfloat16()
    due = residual + gate.tanh() * normed
    found = collection.kernel("norm_tanh_mul_add/split_torch@1")(**arguments)
    # The row's sum may be taken in another order, which moves a rounding now and then.
    assert (found == due).float().mean() > 0.98
    torch.testing.assert_close(found, due, rtol=2**-6, atol=2**-6)


def test_the_reference_leaves_its_arguments_alone(op: Any, parse: Any) -> None:
    params = parse(strided=True, affine=True)
    arguments = inputs(op, params)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    op.reference(params, arguments)
    for name, value in before.items():
        assert torch.equal(arguments[name], value), name
