"""The row norms with tables in shared memory, run on the CPU (helpers/cuda_on_cpu.py): each output within one rounding of float64.

Copies arrive as early and as late as they may, so that a slot of a ring read too soon or refilled too soon shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.registry import nvrtc
from helpers.cuda_on_cpu import EmulationError, on_cpu, translated
from helpers.matrices import few

MODULATED = ("norm_scale_shift", "residual_gate_norm_scale_shift")
SELECT01 = ("norm_scale_shift_gate_select01", "residual_norm_scale_shift_gate_select01")
NORM_TANH = ("norm_tanh_mul_add", "norm_tanh_mul_add_norm_scale")

CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "layer, float32 parameters": (MODULATED, {"tokens": 37, "hidden": 1336, "affine": True, "modulation_dtype": "float32"}),
    "rms of a row for each lane of a warp": (MODULATED, {"tokens": 50, "hidden": 264, "norm": "rms", "dtype": "float16"}),
    "samples": (MODULATED, {"batch": 3, "tokens": 7, "hidden": 520, "affine": True, "strided": True}),
    "frames of four rows": (MODULATED, {"batch": 2, "tokens": 24, "hidden": 72, "modulation": "frame", "frames": 6}),
    "float32": (MODULATED, {"tokens": 11, "hidden": 904, "dtype": "float32", "affine": True}),
    "one value": (MODULATED, {"tokens": 5, "hidden": 8, "modulation": "scalar"}),
    "a table of nearly all shared memory": (MODULATED, {"tokens": 7, "hidden": 6400, "dtype": "float32", "modulation": "channel"}),
    "no gate": (MODULATED[1:], {"tokens": 9, "hidden": 136, "gate": "none"}),
    "a gate for each row": (MODULATED[1:], {"tokens": 9, "hidden": 136, "gate": "token", "modulation_dtype": "float32"}),
    "frames of both": (MODULATED[1:], {"tokens": 24, "hidden": 136, "gate": "frame", "modulation": "frame", "frames": 3}),
    "both sets": (SELECT01, {"batch": 2, "tokens": 19, "hidden": 776, "index": "random", "affine": True, "modulation_dtype": "float32"}),
    "set one, of bools": (SELECT01, {"tokens": 5, "hidden": 96, "index": "ones", "index_dtype": "bool", "dtype": "float16"}),
    "alternating, of 8 bytes": (SELECT01, {"tokens": 13, "hidden": 2056, "index": "alternating", "index_dtype": "int64", "strided": True}),
    "float32 rows of both sets": (SELECT01, {"tokens": 7, "hidden": 456, "index": "alternating", "dtype": "float32"}),
    "streamed residual": (NORM_TANH, {"tokens": 37, "hidden": 1336, "affine": True, "affine2": True}),
    "residual of frames": (
        NORM_TANH,
        {"batch": 2, "tokens": 24, "hidden": 504, "norm": "layer", "affine": True, "affine2": True, "modulation_dtype": "float32",
         "modulation": "frame", "residual": "frame", "residual_dtype": "float32", "scale2": "frame", "frames": 3},
    ),
    "float32, layer, shared residual": (
        NORM_TANH, {"tokens": 9, "hidden": 456, "dtype": "float32", "norm": "layer", "affine": True, "affine2": True, "residual": "batch"},
    ),
    "float32 residual for each row": (NORM_TANH, {"tokens": 9, "hidden": 136, "residual_dtype": "float32", "scale2": "token"}),
    "scalar residual": (NORM_TANH, {"tokens": 9, "hidden": 264, "norm": "layer", "residual": "scalar", "affine2": True, "dtype": "float16"}),
    "nothing to add": (NORM_TANH, {"batch": 2, "tokens": 11, "hidden": 72, "modulation": "scalar", "scale2": "channel", "strided": True}),
}  # fmt: skip
EVERY = [(op, name) for name, (ops, _) in CASES.items() for op in ops]
KEPT = (
    ("norm_scale_shift", "layer, float32 parameters"), ("residual_gate_norm_scale_shift", "frames of both"),
    ("residual_norm_scale_shift_gate_select01", "both sets"), ("norm_tanh_mul_add_norm_scale", "residual of frames"),
    ("norm_tanh_mul_add_norm_scale", "streamed residual"),
)  # fmt: skip


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels compiled for the CPU are kept."""
    return tmp_path_factory.mktemp("cuda_on_cpu")


@pytest.fixture
def run(collection: Any, built: Path) -> Callable[..., tuple[Any, Mapping[str, torch.Tensor], list[nvrtc.KernelSource]]]:
    """`run(op, fields, late=False)`: the case, its outputs by `fused_cuda@4` on three multiprocessors, and the launched sources."""

    def made(op_name: str, fields: dict[str, Any], *, late: bool = False, magnitude: float = 1.0) -> Any:
        op, kernel = collection.op(op_name), collection.kernel(f"{op_name}/fused_cuda@4")
        params = op.parse_params({name: value for name, value in fields.items() if name in op.Params.__struct_fields__})
        assert kernel.reason_unsupported(params) is None
        buffers = op.buffers(params, device=torch.device("cpu"), generator=torch.Generator().manual_seed(1), magnitude=magnitude)
        arguments = op.arguments(params, buffers)
        with on_cpu(built, multiprocessors=3, late=late) as launched:
            returned = kernel.function(**arguments)
        outputs = dict(zip(op.outputs, returned if isinstance(returned, tuple) else (returned,), strict=True))
        return (params, buffers), outputs, launched

    return made


def largest_error(collection: Any, shared: Any, one_rounding: Any, op_name: str, case: Any, outputs: Mapping[str, torch.Tensor]) -> float:
    """In units of one rounding; y2 against the norm of the y that it comes with, since a y between two values may be rounded to either."""
    op, (params, buffers) = collection.op(op_name), case
    arguments = op.arguments(params, buffers)
    reference = op.reference(params, arguments)
    if "y2" in reference:
        second = {name: arguments[name] for name in ("weight2", "bias2", "scale2", "eps", "norm")}
        reference = {**reference, "y2": shared("norm_tanh.chain").reference_norm_scale(outputs["y"], **second)}
    return max(float(one_rounding(value, reference[name])) for name, value in outputs.items())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("op", "name"), few(EVERY, *KEPT))
def test_every_output_is_rounded_once(collection: Any, shared: Any, one_rounding: Any, run: Any, op: str, name: str, late: bool) -> None:
    case, outputs, launched = run(op, CASES[name][1], late=late)
    assert [source.entry.rpartition("_")[2] for source in launched] == ["tables"]
    assert largest_error(collection, shared, one_rounding, op, case, outputs) <= 1
