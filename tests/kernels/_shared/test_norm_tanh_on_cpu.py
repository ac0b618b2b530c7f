"""norm_tanh with tables and by blocks of few rows, run on the CPU (helpers/cuda_on_cpu.py): outputs within one rounding of float64.

Copies to shared memory arrive as early and as late as they may, so that a slot of a ring read too soon or refilled too soon shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fusebench.registry import Kernel, Op
from helpers.cuda_on_cpu import EmulationError, largest, run_case
from helpers.matrices import few

NORM_TANH = ("norm_tanh_mul_add", "norm_tanh_mul_add_norm_scale")
TABLES, ROWS = "fused_cuda@4", "fused_cuda@5"

CASES: dict[str, dict[str, Any]] = {
    "streamed residual": {"tokens": 37, "hidden": 1336, "affine": True, "affine2": True},
    "residual of frames": {
        "batch": 2, "tokens": 24, "hidden": 504, "norm": "layer", "affine": True, "affine2": True, "modulation_dtype": "float32",
        "modulation": "frame", "residual": "frame", "residual_dtype": "float32", "scale2": "frame", "frames": 3,
    },
    "frames of four rows": {"batch": 2, "tokens": 24, "hidden": 72, "modulation": "frame", "frames": 6},
    "more frames than tables": {"tokens": 96, "hidden": 6144, "dtype": "float32", "modulation": "frame", "scale2": "frame", "frames": 24},
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
EVERY = [
    (f"{op}/{kernel}", name, late)
    for name in CASES
    for op in NORM_TANH
    for kernel, late in ((TABLES, False), (TABLES, True), (ROWS, False))
]
KEPT = (
    *((f"norm_tanh_mul_add/{TABLES}", "more frames than tables", late) for late in (False, True)),
    *((f"norm_tanh_mul_add_norm_scale/{kernel}", "residual of frames", False) for kernel in (TABLES, ROWS)),
    (f"norm_tanh_mul_add/{ROWS}", "samples", False),
)


class Bench(NamedTuple):
    """A kernel on the CPU."""

    op: Op
    kernel: Kernel
    folder: Path
    second_norm: Callable[..., torch.Tensor]
    one_rounding: Callable[[torch.Tensor, torch.Tensor], float]

    def error(self, name: str, *, late: bool = False, planted: Mapping[str, str] | None = None) -> float:
        """The largest error of a case in units of one rounding, with three multiprocessors.

        Of y2 against the norm of the y that it comes with: a y between two values may be rounded to either.
        """
        arguments, outputs, reference, entries = run_case(self.op, self.kernel, CASES[name], self.folder, late=late, planted=planted)
        assert [entry.rpartition("_")[2] for entry in entries] == ["rows" if str(self.kernel.id).endswith(ROWS) else "tables"]
        if "y2" in outputs:
            second = {field: arguments[field] for field in ("weight2", "bias2", "scale2", "eps", "norm")}
            reference = {**reference, "y2": self.second_norm(outputs["y"], **second)}
        return largest(self.one_rounding(value, reference[output]) for output, value in outputs.items())


@pytest.fixture
def bench_on_cpu(collection: Any, shared: Any, one_rounding: Any, built: Path) -> Callable[[str], Bench]:
    second_norm = shared("norm_tanh.chain").reference_norm_scale
    return lambda name: Bench(collection.op(name.partition("/")[0]), collection.kernel(name), built, second_norm, one_rounding)


@pytest.mark.parametrize(("kernel", "name", "late"), few(EVERY, *KEPT))
def test_every_output_is_rounded_once(bench_on_cpu: Any, kernel: str, name: str, late: bool) -> None:
    assert bench_on_cpu(kernel).error(name, late=late) <= 1


DEFECTS = {
    "one section for all samples": ("samples", "((u32)section_rows + TOGETHER", "((u32)rows + TOGETHER"),
    "a scale of the row before": ("float32 residual for each row", "!SCALE2_SHARED", "false"),
    "a residual of the row before": ("float32 residual for each row", "!RESIDUAL_SHARED", "false"),
    "a row that is taken twice": ("samples", "min(first + r, last)", "min(first + r / 2, last)"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_blocks_of_few_rows_is_seen(bench_on_cpu: Any, defect: str) -> None:
    name, right, wrong = DEFECTS[defect]
    assert bench_on_cpu(f"norm_tanh_mul_add_norm_scale/{ROWS}").error(name, planted={right: wrong}) > 1


RACES = {
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


@pytest.mark.parametrize("race", RACES)
def test_a_race_is_seen(bench_on_cpu: Any, race: str) -> None:
    bench = bench_on_cpu(f"norm_tanh_mul_add/{TABLES}")
    name, right, wrong = RACES[race]
    try:
        errors = [bench.error(name, late=late, planted={right: wrong}) for late in (False, True)]
    except EmulationError:
        return
    assert max(errors) > 1


def test_a_wait_for_a_copy_that_never_ends_is_seen(bench_on_cpu: Any) -> None:
    with pytest.raises(EmulationError, match="wait for one another for ever"):
        bench_on_cpu(f"norm_tanh_mul_add/{TABLES}").error(
            "streamed residual", late=True, planted={"(STREAMS * ROW_BYTES)": "(STREAMS * ROW_BYTES + 16)"}
        )
