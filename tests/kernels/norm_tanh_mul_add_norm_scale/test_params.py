"""Cases of norm_tanh_mul_add_norm_scale: what its second norm adds to those of norm_tanh_mul_add."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

CPU = torch.device("cpu")
Z_IMAGE = {"tokens": 4128, "hidden": 3840, "affine": True, "affine2": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale2": "row"}, "scale2"),
        ({"affine2": 1}, "affine2"),
        ({"frames": 3}, "frames is 3; it must be 1 unless a modulation has the form 'frame'"),
        ({"norm2": "rms"}, "unknown field `norm2`"),
    ],
)
def test_an_impossible_case_is_refused_by_key_and_value(parse: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        parse(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 2},
        {"batch": 2, "affine": True, "norm": "layer", "scale2": "scalar"},
        {"batch": 2, "affine2": True, "norm": "layer", "scale2": "token", "modulation": "channel"},
        {"batch": 2, "affine": True, "affine2": True, "modulation_dtype": "float32", "strided": True},
        {"batch": 2, "scale2": "frame", "frames": 3, "residual": "channel", "residual_dtype": "float32"},
    ],
)
def test_a_calls_arguments_amount_to_the_case_they_were_made_from(op: Any, parse: Any, changes: dict[str, Any]) -> None:
    params = parse(**changes)
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))
    assert op.params_of(**arguments) == params


def test_strided_gate_and_scale_of_one_form_are_chunks_of_one_tensor(op: Any, parse: Any) -> None:
    buffers = op.buffers(parse(strided=True), device=CPU, generator=torch.Generator().manual_seed(0))
    assert set(buffers) == {"residual", "x", "gate_scale2"}


def test_minimum_bytes_are_those_counted_by_hand(op: Any) -> None:
    activations = 4 * 4128 * 3840 * 2  # x and residual read, y and y2 written, two bytes each
    assert op.minimum_bytes(op.parse_params(Z_IMAGE)) == activations + 4 * 3840 * 2 == 126_842_880
    changes = {"norm": "layer", "affine": False, "scale2": "token", "modulation_dtype": "float32"}
    assert op.minimum_bytes(op.parse_params(Z_IMAGE | changes)) == activations + (1 + 2 + 4128) * 3840 * 4


def test_flops_are_those_counted_by_hand(op: Any) -> None:
    # Per element: square and its sum, product, weight; gate and residual; the second norm alike; scale.  Per row: mean, eps, root, twice.
    assert op.flops(op.parse_params(Z_IMAGE)) == 4128 * (11 * 3840 + 6) + 2 * 3840
    # A layer norm has a sum and a difference more, and bias; without parameters of its own the second has neither.
    assert op.flops(op.parse_params(Z_IMAGE | {"norm": "layer", "affine2": False})) == 4128 * (15 * 3840 + 8) + 2 * 3840


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "4128x3840 bf16 rms affine affine2"),
        ({"affine2": False, "scale2": "token"}, "4128x3840 bf16 rms affine token scale2"),
    ],
)
def test_a_cases_label_names_what_differs_from_the_usual(op: Any, changes: dict[str, Any], label: str) -> None:
    assert op.shape(op.parse_params(Z_IMAGE | changes)) == label
