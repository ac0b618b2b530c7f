"""What the residual and the gate add to the modulated norm, on small cases; the rest is in ../_shared/modulated_norm.

On a GPU where there is one, in the interpreter elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@4")
TRITON = (*FUSED, "split_triton@1")

CASES: dict[str, dict[str, Any]] = {
    "no gate": {"gate": "none", "batch": 2},
    "gate of one value": {"gate": "scalar", "modulation": "token"},
    "gate per frame": {"gate": "frame", "frames": 3, "modulation": "frame", "batch": 2, "tokens": 6},
    "gate per token, strided": {"gate": "token", "strided": True, "modulation_dtype": "float32"},
    "Wan's cross norm": {"modulation_dtype": "float32", "modulation": "scalar", "affine": True, "batch": 2},
}


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", CASES)
def test_a_fused_kernel_rounds_once_with_any_gate(bench: Any, parse: Any, one_rounding: Any, kernel: str, name: str) -> None:
    params = parse(**CASES[name])
    for magnitude in (1.0, 1e-3):
        buffers = bench.buffers(params, magnitude=magnitude)
        reference = bench.reference(params, buffers)
        for output, value in bench.run(kernel, params, buffers).items():
            assert one_rounding(value, reference[output]) <= 1, (output, magnitude)


@pytest.mark.parametrize("kernel", [*TRITON, "split_torch@1"])
def test_v_of_a_float32_gate_is_torchs_to_the_bit(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(batch=2, tokens=8, hidden=264, modulation_dtype="float32")
    arguments = bench.op.arguments(params, bench.buffers(params))
    due = (arguments["residual"].float() + arguments["x"].float() * arguments["gate"]).bfloat16()
    assert torch.equal(bench.kernel(kernel)(**arguments)[1], due)


@pytest.mark.parametrize("kernel", FUSED)
def test_y_is_the_norm_of_the_v_that_is_returned(bench: Any, parse: Any, kernel: str) -> None:
    """Statistics and values come from the rounded v: the plain op on v gives the same bits."""
    params = parse(batch=2, affine=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    y, v = bench.kernel(kernel)(**arguments)
    for name in ("residual", "x", "gate"):
        arguments.pop(name)
    assert torch.equal(bench.collection.kernel(f"norm_scale_shift/{kernel}")(v, **arguments), y)


@pytest.mark.parametrize("kernel", TRITON)
def test_no_gate_is_a_gate_of_one(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(gate="none")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    one = torch.ones(1, dtype=torch.bfloat16, device=bench.device)
    torch.testing.assert_close(bench.kernel(kernel)(**arguments), bench.kernel(kernel)(**(arguments | {"gate": one})), rtol=0, atol=0)


@pytest.mark.parametrize("kernel", TRITON)
def test_frames_of_gate_and_modulation_may_differ(bench: Any, parse: Any, one_rounding: Any, kernel: str) -> None:
    params = parse(batch=2, tokens=12, gate="frame", modulation="frame", frames=4, modulation_dtype="float32")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    arguments["gate"] = arguments["gate"][:, :3].contiguous()
    y, v = bench.kernel(kernel)(**arguments)
    reference = bench.op.reference(params, arguments)
    assert one_rounding(v, reference["v"]) <= 1
    if kernel in FUSED:
        assert one_rounding(y, reference["y"]) <= 1
    assert bench.op.params_of(**arguments).gate == "token", "described as the wider form"


@pytest.mark.parametrize("kernel", TRITON)
def test_an_infinite_gate_leaves_the_padding_out(bench: Any, parse: Any, kernel: str) -> None:
    """A scalar gate is loaded for lanes past D too, and Inf times their zeros is NaN."""
    params = parse(hidden=72, norm="rms")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    arguments["gate"] = torch.full((1,), math.inf, dtype=torch.bfloat16, device=bench.device)
    with np.errstate(all="ignore"):  # the interpreter computes with NumPy, which warns
        y, v = bench.kernel(kernel)(**arguments)
    reference = bench.op.reference(params, arguments)
    torch.testing.assert_close(v.isinf(), reference["v"].isinf())
    torch.testing.assert_close(y.isnan(), reference["y"].isnan())
