"""The float64 reference against the operator's definition written element by element and by torch's own norms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

CPU = torch.device("cpu")


def inputs(op: Any, params: Any) -> dict[str, Any]:
    return dict(op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7))))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("modulation", ["scalar", "channel", "batch", "token", "frame"])
def test_each_row_is_the_definition_computed_element_by_element(op: Any, parse: Any, norm: str, modulation: str) -> None:
    frames = 2 if modulation == "frame" else 1
    params = parse(batch=2, tokens=4, hidden=16, norm=norm, affine=True, modulation=modulation, frames=frames, eps=1e-2)
    arguments = inputs(op, params)
    y = op.reference(params, arguments)["y"]
    for batch in range(2):
        for token in range(4):
            row = arguments["x"][batch, token].double().tolist()
            mean = sum(row) / 16 if norm == "layer" else 0.0
            inverse = 1 / math.sqrt(sum((value - mean) ** 2 for value in row) / 16 + 1e-2)
            for channel in range(16):
                normed = (row[channel] - mean) * inverse * float(arguments["weight"][channel])
                if norm == "layer":
                    normed += float(arguments["bias"][channel])
                index = {"scalar": (0,), "channel": (channel,), "batch": (batch, 0, channel), "token": (batch, token, channel),
                         "frame": (batch, token // 2, 0, channel)}[modulation]  # fmt: skip
                due = normed * (1 + float(arguments["scale"][index])) + float(arguments["shift"][index])
                assert float(y[batch, token, channel]) == pytest.approx(due, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("affine", [False, True])
def test_the_norms_are_torchs(op: Any, parse: Any, affine: bool) -> None:
    for norm in ("layer", "rms"):
        params = parse(norm=norm, affine=affine, eps=1e-5)
        arguments = inputs(op, params)
        x, weight, bias, scale, shift = (
            None if arguments[name] is None else arguments[name].double() for name in ("x", "weight", "bias", "scale", "shift")
        )
        normed = F.layer_norm(x, (96,), weight, bias, 1e-5) if norm == "layer" else F.rms_norm(x, (96,), weight, 1e-5)
        torch.testing.assert_close(op.reference(params, arguments)["y"], normed * (1 + scale) + shift, rtol=1e-12, atol=1e-12)


def test_the_reference_is_float64_and_leaves_its_arguments_alone(op: Any, parse: Any) -> None:
    params = parse(strided=True, affine=True)
    arguments = inputs(op, params)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    assert op.reference(params, arguments)["y"].dtype == torch.float64
    for name, value in before.items():
        assert torch.equal(arguments[name], value), name


def test_strided_arguments_are_views_of_wider_rows_and_of_one_modulation(op: Any, parse: Any) -> None:
    params = parse(batch=2, strided=True)
    buffers = op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0))
    arguments = op.arguments(params, buffers)
    assert arguments["x"].stride() == (3 * 192, 192, 1)
    assert arguments["x"].data_ptr() == buffers["x"].data_ptr() + 96 * 2
    assert arguments["scale"].stride()[0] == 192
    assert arguments["shift"].data_ptr() == arguments["scale"].data_ptr() + 96 * 2


def test_affine_parameters_have_the_modulations_dtype(op: Any, parse: Any) -> None:
    arguments = inputs(op, parse(affine=True, modulation_dtype="float32"))
    assert {arguments[name].dtype for name in ("weight", "bias", "scale", "shift")} == {torch.float32}
    assert arguments["x"].dtype == torch.bfloat16
    assert inputs(op, parse(affine=True, norm="rms"))["bias"] is None
