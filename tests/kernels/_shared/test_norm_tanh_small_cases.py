"""Every Triton kernel of both norm_tanh ops on small cases: on a GPU where there is one, in the interpreter elsewhere.

The interpreter needs milliseconds for each program, so the accuracy gate with its many draws takes a few of the cases; all of them
are held to the elementwise bound of one rounding, which is stricter, on a single draw.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusebench.accuracy import check_kernel
from fusebench.registry import Kernel
from fusebench.registry.signature import positional_names
from fusebench.schema import Close, KernelId, Language, Role
from helpers.matrices import few

FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@3", "fused_triton@5")
TRITON = (*FUSED, "split_triton@1")
EVERYWHERE = [*TRITON, pytest.param("fused_cuda@1", marks=pytest.mark.gpu)]
ONE_PASS = [*FUSED, pytest.param("fused_cuda@1", marks=pytest.mark.gpu)]

CASES: dict[str, dict[str, Any]] = {
    "two tiles": {},
    "rms affine": {"affine": True, "affine2": True},
    "layer affine": {"norm": "layer", "affine": True, "affine2": True, "eps": 1e-6},
    "layer, parameters of the first norm": {"norm": "layer", "affine": True},
    "rms, weight of the second norm": {"affine2": True},
    "short rows, odd samples": {"batch": 3, "tokens": 7, "hidden": 24},
    "rows of 8": {"tokens": 5, "hidden": 8},
    "masked tail": {"hidden": 2056, "tokens": 1},
    "masked block": {"hidden": 120},
    "one value": {"modulation": "scalar", "scale2": "scalar"},
    "per token, strided": {"modulation": "token", "scale2": "token", "strided": True},
    "frames of three short rows": {
        "batch": 2, "tokens": 6, "hidden": 64, "modulation": "frame", "scale2": "frame", "residual": "frame", "frames": 2,
    },
    "frames of whole programs": {"batch": 2, "tokens": 32, "hidden": 64, "modulation": "frame", "frames": 2},
    "float32 modulation": {"batch": 2, "modulation_dtype": "float32", "affine": True, "affine2": True},
    "float16": {"dtype": "float16", "modulation": "channel", "scale2": "token"},
    "float32": {"dtype": "float32", "affine": True, "affine2": True},
    "residual of one value": {"residual": "scalar", "hidden": 72},
    "residual per channel": {"residual": "channel", "batch": 2},
    "residual per sample, strided": {"residual": "batch", "batch": 2, "strided": True},
    "float32 residual": {"residual_dtype": "float32", "batch": 2, "modulation": "scalar", "scale2": "channel"},
}  # fmt: skip

FEW = (
    "two tiles", "layer, parameters of the first norm", "short rows, odd samples", "masked tail", "one value", "per token, strided",
    "frames of three short rows", "float32 modulation", "float32", "residual per sample, strided",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "name"),
    few(
        [
            ("fused_triton@2", "two tiles"),
            ("fused_triton@2", "frames of three short rows"),
            ("fused_triton@2", "float32"),
            ("fused_triton@3", "two tiles"),
            ("fused_triton@3", "float32"),
            ("split_triton@1", "float32 modulation"),
            ("split_triton@1", "rms affine"),
        ],
        ("fused_triton@2", "frames of three short rows"),
        ("fused_triton@3", "two tiles"),
        ("split_triton@1", "float32 modulation"),
    ),
)
def test_a_kernel_passes_the_gate(tanh_bench: Any, tanh_case: Any, kernel: str, name: str) -> None:
    assert not refusal(tanh_bench, tanh_bench.kernel(kernel), tanh_case(**CASES[name]))


def refusal(bench: Any, kernel: Any, params: Any) -> str:
    """Why the accuracy gate fails `kernel`, or an empty string."""
    accuracy = check_kernel(kernel, bench.op, params, split=bench.split, others=bench.collection.kernels, device=bench.device, seed=3)
    return str(accuracy.reason)


@pytest.mark.parametrize("kernel", ONE_PASS)
@pytest.mark.parametrize("name", few(CASES, *FEW))
def test_a_fused_kernel_rounds_once(tanh_bench: Any, tanh_case: Any, gated_error: Any, kernel: str, name: str) -> None:
    params = tanh_case(**CASES[name])
    for magnitude in (1.0, 1e-3):
        buffers = tanh_bench.buffers(params, magnitude=magnitude)
        assert gated_error(params, buffers, tanh_bench.run(kernel, params, buffers)) <= 1, magnitude


def test_more_than_one_rounding_is_seen(tanh_bench: Any, tanh_case: Any, gated_error: Any) -> None:
    """The measure of the test above on a planted defect: the norm rounded before it is gated, as the split chain does."""
    params = tanh_case(hidden=264)
    buffers = tanh_bench.buffers(params)
    for kernel in ("split_torch@1", "split_triton@1"):
        assert gated_error(params, buffers, tanh_bench.run(kernel, params, buffers)) > 1


def planted(bench: Any, shared: Any, squash: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    """The op in float64 with one rounding per output and `squash` in the place of tanh."""
    chain, combine = shared("norm_tanh.chain"), shared("modulation").combine

    def function(*values: Any, **keywords: Any) -> Any:
        arguments = dict(zip(positional_names(bench.op.schema), values, strict=False)) | keywords
        norm = {name: arguments[name] for name in ("weight", "bias", "eps", "norm")}
        gated = combine(operator.mul, shared("norm_chain").reference_norm(arguments["x"], **norm), squash(arguments["gate"].double()))
        y = combine(operator.add, gated, arguments["residual"].double()).to(arguments["x"].dtype)
        if "scale2" not in arguments:
            return y
        second = {name: arguments[name] for name in ("weight2", "bias2", "scale2", "eps", "norm")}
        return y, chain.reference_norm_scale(y, **second).to(y.dtype)

    return Kernel(
        function, KernelId(bench.op.name, "planted", 1), role=Role.FUSED, language=Language.TORCH, contract=Close(), requires=(), note=""
    )


def test_the_gate_sees_a_kernel_without_tanh(tanh_bench: Any, tanh_case: Any, shared: Any) -> None:
    params = tanh_case(tokens=32)
    assert not refusal(tanh_bench, planted(tanh_bench, shared, torch.tanh), params)
    assert "error" in refusal(tanh_bench, planted(tanh_bench, shared, lambda gate: gate), params)


def test_the_tanh_of_a_small_gate_does_not_cancel(tanh_bench: Any, tanh_case: Any, shared: Any) -> None:
    """The formula by exponentials alone is off by half a unit of 1, far too much for a float32 gate of 1e-4: planted beside ours."""
    params = tanh_case(tokens=32, dtype="float32", residual="scalar")
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    arguments |= {"gate": arguments["gate"] * 1e-3, "residual": torch.zeros_like(arguments["residual"])}
    due = tanh_bench.op.reference(params, arguments)["y"]
    cancelling = planted(tanh_bench, shared, lambda gate: (1 - 2 / ((2 * gate.float()).exp() + 1)).double())
    defective, own = (
        float((first(returned).double() - due).abs().max() / due.abs().max())
        for returned in (cancelling.function(**arguments), tanh_bench.kernel("fused_triton@2")(**arguments))
    )
    assert own < 4e-7
    assert defective > 10 * own


def first(returned: Any) -> torch.Tensor:
    """y, of either op."""
    return returned[0] if isinstance(returned, tuple) else returned


@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_broadcast_forms_of_the_same_values_agree_bit_for_bit(tanh_bench: Any, tanh_case: Any, kernel: str) -> None:
    """One row of values, given in every form that can carry it, with several short rows or one of two tiles to a program."""
    for hidden, batch, tokens in ((64, 2, 2), (96, 1, 3)):
        params = tanh_case(batch=batch, tokens=tokens, hidden=hidden, modulation="channel", scale2="channel", residual="channel")
        arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
        names = [name for name in ("residual", "gate", "scale2") if name in arguments]
        outputs = []
        shapes = (
            (hidden,), (1, hidden), (batch, hidden), (1, 1, hidden), (batch, 1, hidden), (1, tokens, hidden), (batch, tokens, hidden),
            (1, tokens, 1, hidden), (batch, 1, 1, hidden), (batch, tokens, 1, hidden),
        )  # fmt: skip
        for shape in shapes:
            for spread in (torch.Tensor.contiguous, lambda values: values):
                changed = {name: spread(arguments[name].expand(shape)) for name in names}
                outputs.append(tanh_bench.kernel(kernel)(**(arguments | changed)))
        for output in outputs[1:]:
            torch.testing.assert_close(output, outputs[0], rtol=0, atol=0)


@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_one_value_is_a_row_of_that_value(tanh_bench: Any, tanh_case: Any, kernel: str) -> None:
    params = tanh_case(modulation="scalar", scale2="scalar", residual="scalar")
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    spread = {name: arguments[name].repeat(96) for name in ("residual", "gate", "scale2") if name in arguments}
    same = [tanh_bench.kernel(kernel)(**call) for call in (arguments, arguments | spread)]
    torch.testing.assert_close(*same, rtol=0, atol=0)


@pytest.mark.parametrize("magnitude", [1.0, 1e3])
def test_a_residual_of_one_value_is_drawn_as_no_outlier(tanh_bench: Any, tanh_case: Any, magnitude: float) -> None:
    params, draw = tanh_case(residual="scalar", dtype="float32"), torch.Generator().manual_seed(0)
    op, device = tanh_bench.op, torch.device("cpu")
    drawn = [op.buffers(params, device=device, generator=draw, magnitude=magnitude)["residual"].item() / magnitude for _ in range(100)]
    assert 2 < max(map(abs, drawn)) < 5  # of 100 standard normal values; an outlier channel is 30 to 100 times larger


@pytest.mark.parametrize("kernel", ONE_PASS)
def test_float32_tensors_of_16_bit_values_change_nothing(tanh_bench: Any, tanh_case: Any, kernel: str) -> None:
    params = tanh_case(batch=2, affine=True, affine2=True, norm="layer")
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    wide = {name: value.float() for name, value in arguments.items() if isinstance(value, torch.Tensor) and name != "x"}
    same = [tanh_bench.kernel(kernel)(**call) for call in (arguments, arguments | wide)]
    torch.testing.assert_close(*same, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_strides_change_nothing(tanh_bench: Any, tanh_case: Any, kernel: str) -> None:
    params = tanh_case(batch=2, tokens=5, strided=True, modulation="token", scale2="token")
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    dense = {name: value.contiguous() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    by_token = {name: arguments[name].transpose(0, 1).contiguous().transpose(0, 1) for name in ("x", "residual")}
    outputs = [tanh_bench.kernel(kernel)(**call) for call in (arguments, dense, arguments | by_token)]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=0, atol=0)


@pytest.mark.parametrize("kernel", EVERYWHERE)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf], ids=str)
def test_nan_and_inf_stay_in_their_row_and_rows_of_zeros_leave_the_residual(
    tanh_bench: Any, tanh_case: Any, kernel: str, norm: str, special: float
) -> None:
    params = tanh_case(tokens=20, hidden=72, norm=norm)
    buffers = {name: buffer.clone() for name, buffer in tanh_bench.buffers(params).items()}
    buffers["x"][0, 7:9] = 0.0
    buffers["residual"][0, 8] = 0.0
    buffers["x"][0, 4, 70] = special
    buffers["residual"][0, 11, 3] = special
    reference, outputs = tanh_bench.reference(params, buffers), tanh_bench.run(kernel, params, buffers)
    others = [row for row in range(20) if row not in (4, 11)]
    for name, value in outputs.items():
        torch.testing.assert_close(value.isnan(), reference[name].isnan(), msg=f"NaN of {name}")
        torch.testing.assert_close(value.isinf(), reference[name].isinf(), msg=f"Inf of {name}")
        assert value[0, others].isfinite().all()
        assert not value[0, 8].any()
    assert not outputs["y"][0, 4].isfinite().all()
    assert outputs["y"][0, 11].isfinite().sum() == 71, "what is added spoils no other channel"
    assert torch.equal(outputs["y"][0, 7], buffers["residual"][0, 7])


@pytest.mark.parametrize("kernel", EVERYWHERE)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_great_gate_is_one_and_nan_stays_in_its_channel(tanh_bench: Any, tanh_case: Any, kernel: str, dtype: str) -> None:
    params = tanh_case(dtype=dtype, modulation="channel")
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    gate = torch.tensor([1e3, -1e3] * 48, dtype=arguments["gate"].dtype, device=tanh_bench.device)
    with np.errstate(all="ignore"):  # the interpreter computes with NumPy, which warns
        great, endless, spoilt = (
            first(tanh_bench.kernel(kernel)(**(arguments | {"gate": each})))
            for each in (gate, gate * math.inf, torch.cat((gate[:7], gate[7:8] * math.nan, gate[8:])))
        )
    assert torch.equal(great, endless)
    reference = tanh_bench.op.reference(params, arguments | {"gate": gate.sign()})["y"]
    one = reference - arguments["residual"].double()
    due = arguments["residual"].double() + one / math.tanh(1.0)
    torch.testing.assert_close(
        great.double(), due, rtol=2 ** (-7 if dtype == "bfloat16" else -20), atol=1e-2 if dtype == "bfloat16" else 1e-5
    )
    others = [channel for channel in range(96) if channel != 7]
    assert spoilt[..., 7].isnan().all()
    assert torch.equal(spoilt[..., others], great[..., others])


@pytest.mark.parametrize("kernel", EVERYWHERE)
@pytest.mark.parametrize("shape", [(0, 5, 64), (2, 0, 64)], ids=str)
def test_an_empty_batch_is_no_launch(tanh_bench: Any, tanh_case: Any, kernel: str, shape: tuple[int, ...]) -> None:
    arguments = dict(tanh_bench.op.arguments(tanh_case(hidden=64), tanh_bench.buffers(tanh_case(hidden=64))))
    empty = torch.ones(shape, dtype=torch.bfloat16, device=tanh_bench.device)
    returned = tanh_bench.kernel(kernel)(**(arguments | {"x": empty, "residual": empty}))
    assert first(returned).shape == empty.shape


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    frames = draw(st.integers(1, 3))
    forms = st.sampled_from(["scalar", "channel", "batch", "token", "frame"])
    modulation, scale2, residual = draw(forms), draw(forms), draw(st.one_of(st.just("token"), forms))
    return {
        "batch": draw(st.integers(1, 3)),
        "tokens": frames * draw(st.integers(1, 4)),
        "hidden": 8 * draw(st.integers(1, 40)),
        "frames": frames if "frame" in (modulation, residual) else 1,
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "affine": draw(st.booleans()),
        "affine2": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "modulation": modulation,
        "scale2": scale2,
        "residual": residual,
        "modulation_dtype": draw(st.sampled_from(["activation", "float32"])),
        "residual_dtype": draw(st.sampled_from(["activation", "float32"])),
        "strided": draw(st.booleans()),
    }


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_any_shape_is_rounded_once(tanh_bench: Any, tanh_case: Any, gated_error: Any, shape: dict[str, Any], seed: int) -> None:
    params = tanh_case(**shape)
    buffers = tanh_bench.buffers(params, seed)
    for kernel in FUSED:
        assert gated_error(params, buffers, tanh_bench.run(kernel, params, buffers)) <= 1, kernel


@pytest.fixture
def many_rows(shared: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tiles' module, to which any launch has many rows."""
    tiles = shared("norm_tanh.tiles")
    assert tiles.tuned(1536, 3).rows == 1
    monkeypatch.setattr(tiles, "MANY_ROWS", 1)
    return tiles


@pytest.mark.parametrize("hidden", [1536, 2056])
def test_two_long_rows_per_program_are_as_right_as_one(
    tanh_bench: Any, tanh_case: Any, gated_error: Any, many_rows: Any, hidden: int
) -> None:
    """The cut of launches of many rows, on three: the last program has one row."""
    params = tanh_case(hidden=hidden, affine=True)
    buffers = tanh_bench.buffers(params)
    assert many_rows.tuned(hidden, 3).rows == 2
    for kernel in ("fused_triton@2", "fused_triton@3"):
        assert gated_error(params, buffers, tanh_bench.run(kernel, params, buffers)) <= 1, kernel


def test_frames_of_the_tensors_of_one_call_may_differ(tanh_bench: Any, tanh_case: Any, one_rounding: Any) -> None:
    params = tanh_case(batch=2, tokens=12, modulation="frame", residual="frame", frames=4)
    arguments = dict(tanh_bench.op.arguments(params, tanh_bench.buffers(params)))
    arguments["residual"] = arguments["residual"][:, :3].contiguous()
    for kernel in FUSED:
        y = first(tanh_bench.kernel(kernel)(**arguments))
        assert one_rounding(y, tanh_bench.op.reference(params, arguments)["y"]) <= 1
    assert tanh_bench.op.params_of(**arguments).residual == "token", "described as the wider form"
