"""Cases of norm_tanh_mul_add: what is refused, what a call amounts to, and the bytes and operations of a case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

KERNELS = Path(__file__).parents[3] / "kernels"
CPU = torch.device("cpu")
Z_IMAGE = {"tokens": 4128, "hidden": 3840, "affine": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"hidden": 100}, "hidden is 100; it must be a multiple of 8 from 8 to 8192"),
        ({"hidden": 8200}, "hidden is 8200"),
        ({"frames": 2, "modulation": "frame"}, r"frames is 2; it must divide tokens \(3\)"),
        ({"frames": 3}, "frames is 3; it must be 1 unless a modulation has the form 'frame'"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"norm": "group"}, "norm"),
        ({"dtype": "float64"}, "dtype"),
        ({"residual": "row"}, "residual"),
        ({"residual_dtype": "bfloat16"}, "residual_dtype"),
        ({"scale2": "batch"}, "unknown field `scale2`"),
    ],
)
def test_an_impossible_case_is_refused_by_key_and_value(parse: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        parse(**changes)


def test_the_norm_is_z_images_unless_given(parse: Any) -> None:
    assert (parse().norm, parse().eps, parse().residual) == ("rms", 1e-5, "token")


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 2},
        {"batch": 2, "modulation": "scalar", "affine": True},
        {"batch": 2, "modulation": "channel", "dtype": "float16", "modulation_dtype": "float32", "eps": 1e-6},
        {"batch": 2, "modulation": "token", "strided": True, "norm": "layer", "affine": True},
        {"batch": 2, "modulation": "frame", "frames": 3, "residual": "frame"},
        {"batch": 2, "residual": "scalar", "residual_dtype": "float32"},
        {"batch": 2, "residual": "channel"},
        {"batch": 2, "residual": "batch", "strided": True},
        {"batch": 2, "residual": "frame", "frames": 3},
    ],
)
def test_a_calls_arguments_amount_to_the_case_they_were_made_from(op: Any, parse: Any, changes: dict[str, Any]) -> None:
    params = parse(**changes)
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(0)))
    assert op.params_of(**arguments) == params


def test_minimum_bytes_are_those_counted_by_hand(op: Any) -> None:
    activations = 3 * 4128 * 3840 * 2  # x and residual read, y written, two bytes each
    assert op.minimum_bytes(op.parse_params(Z_IMAGE)) == activations + 2 * 3840 * 2 == 95_124_480
    assert op.minimum_bytes(op.parse_params(Z_IMAGE | {"residual_dtype": "float32"})) == activations * 4 // 3 + 2 * 3840 * 2
    changes = {"residual": "channel", "modulation": "token", "modulation_dtype": "float32", "norm": "layer", "strided": True}
    assert op.minimum_bytes(op.parse_params(Z_IMAGE | changes)) == activations * 2 // 3 + 3840 * 2 + 4128 * 3840 * 4 + 2 * 3840 * 4


def test_flops_are_those_counted_by_hand(op: Any) -> None:
    # Per element: square and its sum, product, weight; gate and residual.  Per row: mean, eps, reciprocal root.  Per gate: tanh.
    assert op.flops(op.parse_params(Z_IMAGE)) == 4128 * (6 * 3840 + 3) + 3840


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "4128x3840 bf16 rms affine"),
        ({"residual": "channel", "residual_dtype": "float32"}, "4128x3840 bf16 rms affine channel residual fp32 residual"),
        ({"modulation": "token"}, "4128x3840 bf16 rms affine token"),
    ],
)
def test_a_cases_label_names_what_differs_from_the_usual(op: Any, changes: dict[str, Any], label: str) -> None:
    assert op.shape(op.parse_params(Z_IMAGE | changes)) == label


@pytest.mark.parametrize(("rows", "due"), [(100, (3, 12, 4)), (30, (3, 8, 4)), (4, (3, 1, 1)), (1, (1, 1, 1))])
def test_a_shrunk_case_has_at_most_so_many_rows_and_whole_frames(parse: Any, op: Any, rows: int, due: tuple[int, ...]) -> None:
    params = parse(batch=3, tokens=12, frames=4, residual="frame", eps=1e-6)
    shrunk = op.shrink(params, rows)
    assert (shrunk.batch, shrunk.tokens, shrunk.frames) == due
    assert msgspec.structs.replace(shrunk, batch=3, tokens=12, frames=4) == params


@pytest.mark.parametrize("name", ["norm_tanh_mul_add", "norm_tanh_mul_add_norm_scale"])
def test_op_py_imports_no_torch(name: str) -> None:
    code = f"""
import sys
from pathlib import Path
from fusebench.registry import load_collection
collection = load_collection([Path({str(KERNELS)!r})], kernels=False, entry_points=False)
assert not collection.problems, collection.problems
op = collection.op({name!r})
params = op.parse_params({Z_IMAGE!r})
assert op.minimum_bytes(params) and op.flops(params) and op.shape(params)
assert "torch" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
