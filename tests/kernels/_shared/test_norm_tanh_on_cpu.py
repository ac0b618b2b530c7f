"""The norm_tanh kernels that stream rows, without and with tables, run on the CPU (helpers/cuda_on_cpu.py).

Each output is within one rounding of float64. Copies arrive as early and as late as they may, so that a slot of a ring read too soon or
refilled too soon shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.registry import Collection
from helpers.cuda_on_cpu import EmulationError, run_case, worst
from helpers.matrices import few

NORM_TANH = ("norm_tanh_mul_add", "norm_tanh_mul_add_norm_scale")

CASES: dict[str, dict[str, Any]] = {
    "streamed residual": {"tokens": 37, "hidden": 1336, "affine": True, "affine2": True},
    "residual of frames": {
        "batch": 2, "tokens": 24, "hidden": 504, "norm": "layer", "affine": True, "affine2": True, "modulation_dtype": "float32",
        "modulation": "frame", "residual": "frame", "residual_dtype": "float32", "scale2": "frame", "frames": 3,
    },
    "frames of four rows": {"batch": 2, "tokens": 24, "hidden": 72, "modulation": "frame", "frames": 6},
    "more frames than tables": {
        "tokens": 210, "hidden": 3072, "dtype": "float32", "norm": "layer", "affine": True,
        "modulation": "frame", "scale2": "frame", "frames": 42,
    },
    "samples": {"batch": 3, "tokens": 7, "hidden": 520, "affine": True, "affine2": True, "strided": True},
    "a row for each lane of a warp": {"tokens": 50, "hidden": 264, "dtype": "float16"},
    "one vector": {"tokens": 5, "hidden": 8, "norm": "layer", "modulation": "channel"},
    "float32, layer, shared residual": {
        "tokens": 9, "hidden": 456, "dtype": "float32", "norm": "layer", "affine": True, "affine2": True, "residual": "batch",
    },
    "float32 residual for each row": {"tokens": 9, "hidden": 136, "residual_dtype": "float32", "scale2": "token"},
    "scalar residual": {"tokens": 9, "hidden": 264, "norm": "layer", "residual": "scalar", "dtype": "float16"},
    "nothing to add": {"batch": 2, "tokens": 11, "hidden": 72, "modulation": "scalar", "scale2": "channel", "strided": True},
}  # fmt: skip
OWN_GATES: dict[str, dict[str, Any]] = {
    "a gate for each row": {"tokens": 37, "hidden": 1336, "affine": True, "affine2": True, "modulation": "token"},
    "everything for each row": {
        "batch": 2, "tokens": 7, "hidden": 520, "norm": "layer", "affine": True, "affine2": True, "modulation": "token",
        "modulation_dtype": "float32", "residual_dtype": "float32", "scale2": "token", "strided": True,
    },
    "a gate for each row, frames": {
        "batch": 2, "tokens": 24, "hidden": 72, "dtype": "float16", "modulation": "token", "residual": "frame", "scale2": "frame",
        "residual_dtype": "float32", "frames": 3, "affine": True,
    },
    "float32, a gate for each row": {"tokens": 9, "hidden": 456, "dtype": "float32", "modulation": "token", "residual": "batch"},
}  # fmt: skip
"""Which have no tables."""
SHARING = [(op, 4, name) for name in CASES for op in NORM_TANH]
STREAMED = [("norm_tanh_mul_add", 3, name) for name in (*CASES, *OWN_GATES)]
STREAMED += [("norm_tanh_mul_add_norm_scale", version, name) for name in (*CASES, *OWN_GATES) for version in (2, 3)]
KEPT = (
    ("norm_tanh_mul_add", 4, "more frames than tables"),
    ("norm_tanh_mul_add_norm_scale", 4, "residual of frames"),
    ("norm_tanh_mul_add", 3, "a gate for each row"),
    ("norm_tanh_mul_add_norm_scale", 3, "everything for each row"),
    ("norm_tanh_mul_add_norm_scale", 2, "everything for each row"),
    ("norm_tanh_mul_add_norm_scale", 3, "a gate for each row, frames"),
)


@pytest.fixture
def error_of(error_on_cpu: Callable[..., float]) -> Callable[..., float]:
    """`error_of(op, version, case, **of run_case)`: `error_on_cpu` of a case."""

    def error(op: str, version: int, name: str, **how: Any) -> float:
        entry = "norm_tanh_tables" if version == 4 else "norm_tanh_stream"
        return error_on_cpu(f"{op}/fused_cuda@{version}", (CASES | OWN_GATES)[name], entry, **how)

    return error


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("op", "version", "name"), few(SHARING + STREAMED, *KEPT))
def test_every_output_is_rounded_once(error_of: Any, op: str, version: int, name: str, late: bool) -> None:
    assert error_of(op, version, name, late=late) <= 1


DEFECTS = {
    "rows are read before they have arrived": ("samples", "while (!done)", "while (false)"),
    "tables are made anew while a team reads them": ("more frames than tables", "if (from != begin) __syncthreads();", ""),
    "rows are read before the tables are made": (
        "streamed residual",
        "__syncthreads();\n        for (; row < until",
        "for (; row < until",
    ),
    "a slot is refilled before its row is taken": (
        "more frames than tables",
        "stream.wait();",
        "stream.wait();\n        if (member == 0 && row + GROUPS < own_rows.end) stream.request(stream.slot, row + GROUPS);",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_race_is_seen(error_of: Any, defect: str) -> None:
    name, right, wrong = DEFECTS[defect]
    assert worst(partial(error_of, "norm_tanh_mul_add", 4, name, planted={right: wrong})) > 1


def test_a_wait_for_a_copy_that_never_ends_is_seen(error_of: Any) -> None:
    planted = {"expect(ring.full[into], SLOT_BYTES)": "expect(ring.full[into], SLOT_BYTES + 16)"}
    with pytest.raises(EmulationError, match="wait for one another for ever"):
        error_of("norm_tanh_mul_add", 4, "streamed residual", late=True, planted=planted)


@pytest.mark.parametrize("wrong", ["gate_row(batch, 0)", "gate_row(0, token)"])
def test_a_gate_of_another_row_is_seen(error_of: Any, wrong: str) -> None:
    planted = {"return stream == 2 ? gate_row(batch, token)": f"return stream == 2 ? {wrong}"}
    assert error_of("norm_tanh_mul_add_norm_scale", 3, "everything for each row", planted=planted) > 1


FAR = {
    "tokens": 96, "hidden": 2104, "dtype": "float16", "norm": "layer", "affine": True, "modulation": "scalar",
    "modulation_dtype": "float32", "residual": "scalar", "residual_dtype": "float32", "scale2": "scalar",
}  # fmt: skip


@pytest.fixture
def moved(collection: Collection, built: Path) -> Callable[..., int]:
    """`moved(version, **of run_case)`: elements of y that are not what float64 rounds to, where one value that is far larger is added."""
    op = collection.op("norm_tanh_mul_add_norm_scale")

    def fill(arguments: Mapping[str, Any]) -> None:
        arguments["residual"].fill_(65.0131)

    def count(version: int, **how: Any) -> int:
        ran = run_case(op, collection.kernel(f"{op.name}/fused_cuda@{version}"), FAR, built, fill=fill, **how)
        return int((ran.outputs["y"] != ran.reference["y"].to(torch.float16)).sum())

    return count


MERGED = {
    3: {"WITH_RESIDUAL = LINE && MERGED": "WITH_RESIDUAL = LINE"},
    4: {"#define APART (RESIDUAL_SHARED && !MERGED)": "#undef MERGED\n#define MERGED 1\n#define APART 0"},
}


@pytest.mark.parametrize("version", MERGED)
def test_a_far_larger_residual_moves_no_element_across_a_tie(moved: Callable[..., int], version: int) -> None:
    assert moved(version) == 0


@pytest.mark.parametrize("version", MERGED)
def test_a_far_larger_residual_that_is_added_to_the_bias_first_is_seen(moved: Callable[..., int], version: int) -> None:
    assert moved(version, planted=MERGED[version]) > 1
