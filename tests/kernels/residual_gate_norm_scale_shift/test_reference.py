"""The float64 reference against the operator's definition: the residual sum, its rounding, and the norm of what is rounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


def inputs(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7))))


@pytest.mark.parametrize("gate", ["none", "scalar", "channel", "batch", "token", "frame"])
def test_v_is_the_definition_computed_element_by_element(op: Any, parse: Any, gate: str) -> None:
    params = parse(batch=2, tokens=4, hidden=16, gate=gate, frames=2 if gate == "frame" else 1)
    arguments = inputs(op, params)
    v = op.reference(params, arguments)["v"]
    for batch in range(2):
        for token in range(4):
            for channel in range(16):
                index = {"scalar": (0,), "channel": (channel,), "batch": (batch, 0, channel), "token": (batch, token, channel),
                         "frame": (batch, token // 2, 0, channel)}  # fmt: skip
                factor = 1.0 if gate == "none" else float(arguments["gate"][index[gate]])
                place = (batch, token, channel)
                assert float(v[place]) == float(arguments["residual"][place]) + factor * float(arguments["x"][place])


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_y_is_norm_scale_shift_of_the_rounded_v(collection: Any, op: Any, parse: Any, norm: str) -> None:
    params = parse(norm=norm, affine=True, modulation="token")
    arguments = inputs(op, params)
    found = op.reference(params, arguments)
    inner = collection.op("norm_scale_shift")
    shared = {name: arguments[name] for name in ("weight", "bias", "scale", "shift", "eps", "norm")}
    case = inner.parse_params({"tokens": 3, "hidden": 96, "norm": norm, "affine": True, "modulation": "token"})
    rounded = found["v"].bfloat16()
    assert torch.equal(found["y"], inner.reference(case, {"x": rounded, **shared})["y"])
    assert not torch.equal(found["y"], inner.reference(case, {"x": found["v"], **shared})["y"]), "the rounding shows"


def test_the_reference_is_float64_and_leaves_its_arguments_alone(op: Any, parse: Any) -> None:
    params = parse(strided=True, affine=True)
    arguments = inputs(op, params)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    assert [output.dtype for output in op.reference(params, arguments).values()] == [torch.float64] * 2
    for name, value in before.items():
        assert torch.equal(arguments[name], value), name


def test_strided_modulations_of_one_form_are_chunks_of_one_tensor(op: Any, parse: Any) -> None:
    buffers = op.buffers(parse(strided=True), device=CPU, generator=torch.Generator().manual_seed(0))
    assert set(buffers) == {"residual", "x", "gate_scale_shift"}
    apart = op.buffers(parse(strided=True, gate="channel"), device=CPU, generator=torch.Generator().manual_seed(0))
    assert set(apart) == {"residual", "x", "gate", "scale_shift"}
