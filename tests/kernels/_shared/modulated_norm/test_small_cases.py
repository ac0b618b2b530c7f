"""Every Triton kernel of both modulated norms on small cases: on a GPU where there is one, in the interpreter elsewhere.

The interpreter needs milliseconds for each program, so the accuracy gate with its many draws takes a few of the cases; all of them
are held to the elementwise bound of one rounding, which is stricter, on a single draw.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusebench.accuracy import check_kernel
from helpers.matrices import few

FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@4")
TRITON = (*FUSED, "split_triton@1")

CASES: dict[str, dict[str, Any]] = {
    "two tiles": {},
    "rms affine": {"norm": "rms", "affine": True},
    "layer affine": {"affine": True, "eps": 1e-5},
    "short rows, odd samples": {"batch": 3, "tokens": 7, "hidden": 24},
    "rows of 8": {"tokens": 5, "hidden": 8},
    "masked tail": {"hidden": 2056, "tokens": 1},
    "masked block": {"hidden": 120},
    "one value": {"modulation": "scalar"},
    "per token, strided": {"modulation": "token", "strided": True},
    "frames of three short rows": {"batch": 2, "tokens": 6, "hidden": 64, "modulation": "frame", "frames": 2},
    "frames of whole programs": {"batch": 2, "tokens": 32, "hidden": 64, "modulation": "frame", "frames": 2},
    "float32 modulation": {"batch": 2, "modulation_dtype": "float32", "affine": True},
    "float16": {"dtype": "float16", "modulation": "channel"},
    "float32": {"dtype": "float32", "affine": True},
}


@pytest.mark.parametrize(
    ("kernel", "name"),
    few(
        [
            ("fused_triton@2", "two tiles"),
            ("fused_triton@2", "frames of three short rows"),
            ("fused_triton@2", "float32 modulation"),
            ("split_triton@1", "float32 modulation"),
            ("split_triton@1", "frames of three short rows"),
        ],
        ("fused_triton@2", "frames of three short rows"),
        ("split_triton@1", "float32 modulation"),
    ),
)
def test_a_kernel_passes_the_gate(bench: Any, parse: Any, kernel: str, name: str) -> None:
    accuracy = check_kernel(
        bench.kernel(kernel),
        bench.op,
        parse(**CASES[name]),
        split=bench.split,
        others=bench.collection.kernels,
        device=bench.device,
        seed=3,
    )
    assert accuracy.passed, accuracy.reason


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", CASES)
def test_a_fused_kernel_rounds_once(bench: Any, parse: Any, one_rounding: Any, kernel: str, name: str) -> None:
    params = parse(**CASES[name])
    for magnitude in (1.0, 1e-3):
        buffers = bench.buffers(params, magnitude=magnitude)
        reference = bench.reference(params, buffers)
        for output, value in bench.run(kernel, params, buffers).items():
            assert one_rounding(value, reference[output]) <= 1, (output, magnitude)


def test_more_than_one_rounding_is_seen(bench: Any, parse: Any, one_rounding: Any) -> None:
    """The measure of the test above on a planted defect: the norm rounded before it is modulated, as the split chain does."""
    params = parse(hidden=264)
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)["y"]
    for kernel in ("split_torch@1", "split_triton@1"):
        assert one_rounding(bench.run(kernel, params, buffers)["y"], reference) > 1


SIZES = {"short rows": (64, 2, 2), "one sample of short rows": (64, 1, 3), "two tiles": (96, 2, 2), "one sample of two tiles": (96, 1, 3)}
"""Hidden size, batch, tokens: several short rows or one of two tiles to a program."""


@pytest.mark.parametrize("kernel", TRITON)
@pytest.mark.parametrize("size", few(SIZES, "short rows", "one sample of two tiles"))
def test_broadcast_forms_of_the_same_values_agree_bit_for_bit(bench: Any, parse: Any, modulations: Any, kernel: str, size: str) -> None:
    """One row of values, given in every form that can carry it."""
    hidden, batch, tokens = SIZES[size]
    params = parse("channel", batch=batch, tokens=tokens, hidden=hidden)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    outputs = []
    shapes = (
        (hidden,), (1, hidden), (batch, hidden), (1, 1, hidden), (batch, 1, hidden), (1, tokens, hidden), (batch, tokens, hidden),
        (1, tokens, 1, hidden), (batch, 1, 1, hidden), (batch, tokens, 1, hidden),
    )  # fmt: skip
    for shape in shapes:
        for spread in (torch.Tensor.contiguous, lambda values: values):
            changed = {name: spread(arguments[name].expand(shape)) for name in modulations}
            outputs.append(bench.kernel(kernel)(**(arguments | changed)))
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=0, atol=0)


@pytest.mark.parametrize("kernel", TRITON)
def test_one_value_is_a_row_of_that_value(bench: Any, parse: Any, modulations: Any, kernel: str) -> None:
    params = parse("scalar")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    spread = {name: arguments[name].repeat(96) for name in modulations}
    torch.testing.assert_close(bench.kernel(kernel)(**arguments), bench.kernel(kernel)(**(arguments | spread)), rtol=0, atol=0)


@pytest.mark.parametrize("kernel", FUSED)
def test_float32_modulation_of_16_bit_values_changes_nothing(bench: Any, parse: Any, modulations: Any, kernel: str) -> None:
    params = parse(batch=2, affine=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    wide = {name: arguments[name].float() for name in (*modulations, "weight", "bias")}
    torch.testing.assert_close(bench.kernel(kernel)(**arguments), bench.kernel(kernel)(**(arguments | wide)), rtol=0, atol=0)


@pytest.mark.parametrize("kernel", TRITON)
def test_strides_change_nothing(bench: Any, parse: Any, activations: Any, kernel: str) -> None:
    params = parse("token", batch=2, tokens=5, strided=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    dense = {name: value.contiguous() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    by_token = {name: arguments[name].transpose(0, 1).contiguous().transpose(0, 1) for name in activations}
    outputs = [bench.kernel(kernel)(**call) for call in (arguments, dense, arguments | by_token)]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=0, atol=0)


SPECIAL = {"NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}


@pytest.mark.parametrize(("kernel", "norm"), list(itertools.product(TRITON, ("layer", "rms"))))
@pytest.mark.parametrize("special", SPECIAL)
def test_nan_and_inf_stay_in_their_row_and_zeros_become_the_shift(bench: Any, parse: Any, kernel: str, norm: str, special: str) -> None:
    params = parse(tokens=20, hidden=72, norm=norm)
    buffers = {name: buffer.clone() for name, buffer in bench.buffers(params).items()}
    for name in {"x", "residual"} & buffers.keys():
        buffers[name][0, 7] = 0.0
    buffers["x"][0, 4, 70] = SPECIAL[special]
    reference, outputs = bench.reference(params, buffers), bench.run(kernel, params, buffers)
    for name, value in outputs.items():
        torch.testing.assert_close(value.isnan(), reference[name].isnan(), msg=f"NaN of {name}")
        torch.testing.assert_close(value.isinf(), reference[name].isinf(), msg=f"Inf of {name}")
        others = [row for row in range(20) if row != 4]
        assert value[0, others].isfinite().all()
    assert outputs["y"][0, 4].isnan().any()
    assert torch.equal(outputs["y"][0, 7], buffers["shift"].flatten())


@pytest.mark.parametrize("kernel", TRITON)
@pytest.mark.parametrize("shape", [(0, 5, 64), (2, 0, 64)], ids=str)
def test_an_empty_batch_is_no_launch(bench: Any, activations: Any, modulations: Any, kernel: str, shape: tuple[int, ...]) -> None:
    empty, row = torch.ones(shape, device=bench.device), torch.ones(64, device=bench.device)
    call = dict.fromkeys(("weight", "bias")) | dict.fromkeys(activations, empty) | dict.fromkeys(modulations, row)
    returned = bench.kernel(kernel)(**call)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    assert [output.shape for output in outputs] == [empty.shape] * len(bench.op.outputs)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    frames = draw(st.integers(1, 3))
    forms = st.sampled_from(["scalar", "channel", "batch", "token", "frame"])
    modulation, gate = draw(forms), draw(st.one_of(st.just("none"), forms))
    return {
        "batch": draw(st.integers(1, 3)),
        "tokens": frames * draw(st.integers(1, 4)),
        "hidden": 8 * draw(st.integers(1, 40)),
        "frames": frames,
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "affine": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "modulation": modulation,
        "modulation_dtype": draw(st.sampled_from(["activation", "float32"])),
        "strided": draw(st.booleans()),
        "gate": gate,
    }


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_any_shape_is_rounded_once(bench: Any, parse: Any, one_rounding: Any, shape: dict[str, Any], seed: int) -> None:
    gated = "residual" in bench.op.schema
    forms = (shape["modulation"], shape["gate"] if gated else "none")
    known = {name: value for name, value in shape.items() if gated or name != "gate"}
    params = parse(**(known | {"frames": shape["frames"] if "frame" in forms else 1}))
    buffers = bench.buffers(params, seed)
    reference = bench.reference(params, buffers)
    for kernel in FUSED:
        for output, value in bench.run(kernel, params, buffers).items():
            assert one_rounding(value, reference[output]) <= 1, (kernel, output)
