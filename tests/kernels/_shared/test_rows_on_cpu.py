"""Blocks of one row and of a few rows, run on the CPU (helpers/cuda_on_cpu.py): each output within one rounding of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.matrices import few

NORMS = ("norm_scale_shift", "residual_gate_norm_scale_shift")
SELECT01 = ("norm_scale_shift_gate_select01", "residual_norm_scale_shift_gate_select01")

NORM_CASES: dict[str, dict[str, Any]] = {
    "rows left over": {"tokens": 7, "hidden": 1336, "affine": True},
    "fewer rows than a block takes": {"tokens": 1, "hidden": 136},
    "a sample ends within a block": {
        "batch": 3,
        "tokens": 5,
        "hidden": 520,
        "affine": True,
        "modulation_dtype": "float32",
        "strided": True,
    },
    "frames end within a block": {"batch": 2, "tokens": 20, "hidden": 264, "modulation": "frame", "frames": 4, "gate": "frame"},
    "frames of float32 values": {
        "tokens": 12,
        "hidden": 520,
        "modulation": "frame",
        "frames": 3,
        "modulation_dtype": "float32",
        "gate": "none",
    },
    "a gate for each row": {"tokens": 8, "hidden": 264, "gate": "token"},
    "values that all rows share": {"tokens": 7, "hidden": 392, "norm": "rms", "affine": True, "modulation": "channel", "gate": "channel"},
    "one value": {"batch": 2, "tokens": 4, "hidden": 72, "dtype": "float16", "modulation": "scalar", "gate": "none"},
    "one vector": {"tokens": 5, "hidden": 8},
    "more warps than lanes add one by one": {"tokens": 7, "hidden": 7176, "affine": True},
    "float32": {"batch": 2, "tokens": 5, "hidden": 1544, "dtype": "float32", "modulation_dtype": "float32", "affine": True},
}
SELECT01_CASES: dict[str, dict[str, Any]] = {
    "samples": {"batch": 3, "tokens": 5, "hidden": 520, "affine": True, "strided": True},
    "float32 rows": {"tokens": 7, "hidden": 1336, "affine": True, "modulation_dtype": "float32"},
}
EVERY = [(f"{op}/fused_cuda@{version}", name) for name in NORM_CASES for op in NORMS for version in (4, 5)]
EVERY += [(f"{op}/fused_cuda@4", name) for name in SELECT01_CASES for op in SELECT01]
KEPT = tuple((f"{op}/fused_cuda@5", name) for op in NORMS for name in ("a sample ends within a block", "rows left over"))
KEPT += (("residual_gate_norm_scale_shift/fused_cuda@4", "frames of float32 values"),)


@pytest.fixture
def error_of(error_on_cpu: Callable[..., float]) -> Callable[..., float]:
    """`error_of(kernel, case, planted)`: `error_on_cpu` of a case."""
    return lambda name, case, planted=None: error_on_cpu(name, {**NORM_CASES, **SELECT01_CASES}[case], planted=planted)


@pytest.mark.parametrize(("kernel", "case"), few(EVERY, *KEPT))
def test_every_output_is_rounded_once(error_of: Any, kernel: str, case: str) -> None:
    assert error_of(kernel, case) <= 1


ALONE, NEIGHBOURS = "residual_gate_norm_scale_shift/fused_cuda@4", "residual_gate_norm_scale_shift/fused_cuda@5"
SELECTING = "residual_norm_scale_shift_gate_select01/fused_cuda@4"
FIRST_SHIFT = ("early_shift.load(shifts[0], member)", "early_shift.load(shift, member)")
FIRST_SET = ("early_scale.load(scales, member)", "early_scale.load(scale0, member)")
NO_STORE = ("if constexpr (RESIDUAL && EARLY) store_vector", "if constexpr (false) store_vector")
DEFECTS = {
    "a shift of the sample before": (NEIGHBOURS, "a sample ends within a block", "shifts[r] != shifts[r - 1]", "false"),
    "a gate of the sample before": (NEIGHBOURS, "a sample ends within a block", "gates[r] != gates[r - 1]", "false"),
    "statistics of the row before": (NEIGHBOURS, "rows left over", "whole_sums<SPREAD>(slots[r] + ", "whole_sums<SPREAD>(slots[0] + "),
    "a row that is taken twice": (NEIGHBOURS, "a sample ends within a block", "min(first + r, rows - 1)", "min(first + r / 2, rows - 1)"),
    "a shift of the first frame": (ALONE, "frames of float32 values", *FIRST_SHIFT),
    "a scale of the other set": (SELECTING, "samples", *FIRST_SET),
    "v that is not stored": (SELECTING, "samples", *NO_STORE),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_seen(error_of: Any, defect: str) -> None:
    kernel, case, right, wrong = DEFECTS[defect]
    assert error_of(kernel, case, {right: wrong}) > 1
