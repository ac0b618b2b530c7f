"""Every Triton kernel of both ops on small cases: on a GPU where there is one, in the interpreter elsewhere.

The interpreter needs milliseconds for each program, so the accuracy gate with its many draws takes a few of the cases; all of them
are held to the elementwise bound of one rounding, which is stricter, on a single draw.
"""

from __future__ import annotations

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
ALL = (*TRITON, "split_torch@1")

CASES: dict[str, dict[str, Any]] = {
    "one masked tile": {},
    "two tiles": {"hidden": 768, "tokens": 2, "index": "alternating"},
    "masked tail": {"hidden": 2056, "tokens": 2, "affine": True},
    "affine": {"affine": True, "eps": 1e-5, "index": "ones"},
    "short rows, odd samples": {"batch": 3, "tokens": 7, "hidden": 24, "index": "alternating"},
    "rows of 8": {"tokens": 5, "hidden": 8, "index": "random"},
    "strided": {"batch": 2, "tokens": 5, "strided": True, "index": "alternating"},
    "strided, long rows": {"batch": 2, "tokens": 2, "hidden": 1032, "strided": True, "index": "alternating", "index_dtype": "bool"},
    "float32 rows": {"batch": 2, "modulation_dtype": "float32", "affine": True, "index_dtype": "int64"},
    "float16": {"dtype": "float16", "index": "random", "tokens": 6},
    "float32": {"dtype": "float32", "affine": True, "batch": 2},
    "one token": {"tokens": 1},
}


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("fused_triton@1", "short rows, odd samples"),
        ("fused_triton@2", "short rows, odd samples"),
        ("fused_triton@2", "float32 rows"),
        ("split_triton@1", "float32 rows"),
        ("split_triton@1", "strided"),
    ],
)
def test_a_kernel_passes_the_gate(bench: Any, parse: Any, kernel: str, name: str) -> None:
    params, others = parse(**CASES[name]), bench.collection.kernels
    accuracy = check_kernel(bench.kernel(kernel), bench.op, params, split=bench.split, others=others, device=bench.device, seed=3)
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


@pytest.mark.parametrize("kernel", ALL)
def test_gate_out_of_the_activations_dtype_is_the_gate_to_the_bit(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(batch=2, tokens=4)
    arguments = bench.op.arguments(params, bench.buffers(params))
    gate_out = bench.kernel(kernel)(**arguments)[-1]
    for token, gate in enumerate(("gate0", "gate0", "gate1", "gate1")):
        assert torch.equal(gate_out[:, token], arguments[gate])


def as_due(bench: Any, kernel: str, arguments: dict[str, Any], one: torch.Tensor) -> None:
    """Each token's results are those of a call in which all tokens take its set; `one` `[B, L]` says which that is."""
    found = bench.kernel(kernel)(**arguments)
    zeros, ones = (
        bench.kernel(kernel)(**(arguments | {"index": torch.full(one.shape, value, dtype=torch.int32, device=bench.device)}))
        for value in (0, 1)
    )
    for output, zero_output, one_output in zip(found, zeros, ones, strict=True):
        assert torch.equal(output, torch.where(one.unsqueeze(-1), one_output, zero_output))


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("index", few(["step", "zeros", "ones", "alternating", "random"], "step", "alternating"))
@pytest.mark.parametrize("hidden", [64, 1032])
def test_every_token_takes_the_set_that_its_index_names(bench: Any, parse: Any, kernel: str, index: str, hidden: int) -> None:
    params = parse(batch=2, tokens=5, hidden=hidden, index=index, affine=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    place = torch.arange(5, device=bench.device).expand(2, 5)
    due = {"step": place >= 3, "zeros": place < 0, "ones": place >= 0, "alternating": place % 2 == 1}
    as_due(bench, kernel, arguments, due.get(index, arguments["index"] == 1))


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize(
    ("dtype", "values"),
    [("int32", [0, -1, 2, 2**31 - 1, 0]), ("int64", [0, 2**32, -(2**63), 1, 0]), ("bool", [False, True, True, False, True])],
)
def test_whatever_is_not_zero_asks_for_set_one(bench: Any, parse: Any, kernel: str, dtype: str, values: list[int]) -> None:
    for hidden in (64, 1032):
        params = parse(tokens=5, hidden=hidden, index_dtype=dtype)
        index = torch.tensor([values], dtype=getattr(torch, dtype), device=bench.device)
        arguments = dict(bench.op.arguments(params, bench.buffers(params))) | {"index": index}
        as_due(bench, kernel, arguments, index.bool())


@pytest.mark.parametrize("kernel", TRITON)
def test_strides_change_nothing(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(batch=2, tokens=5, strided=True, index="random")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    assert not any(arguments[name].is_contiguous() for name in ("x", "scale0", "gate1", "index"))
    dense = {name: value.contiguous() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    activations = [name for name in ("x", "residual", "residual_gate", "index") if name in arguments]
    by_token = {name: arguments[name].transpose(0, 1).contiguous().transpose(0, 1) for name in activations}
    outputs = [bench.kernel(kernel)(**call) for call in (arguments, dense, arguments | by_token)]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=0, atol=0)


@pytest.mark.parametrize("kernel", FUSED)
def test_float32_rows_of_16_bit_values_change_nothing(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(batch=2, affine=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    names = ("weight", "bias", "scale0", "shift0", "gate0", "scale1", "shift1", "gate1")
    wide = {name: arguments[name].float() for name in names}
    torch.testing.assert_close(bench.kernel(kernel)(**arguments), bench.kernel(kernel)(**(arguments | wide)), rtol=0, atol=0)


@pytest.mark.parametrize("hidden", [64, 1032])
def test_the_first_two_versions_agree_bit_for_bit(bench: Any, parse: Any, hidden: int) -> None:
    """They differ in what they load, not in what they compute."""
    params = parse(batch=2, tokens=5, hidden=hidden, index="random", affine=True)
    buffers = bench.buffers(params)
    first, second = (bench.run(kernel, params, buffers) for kernel in FUSED[:2])
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def leaks(kernel: Any, bench: Any, parse: Any, special: float, hidden: int) -> bool:
    """Whether a special value in the rows that no token asks for shows in the results."""
    for index, unused in (("zeros", "1"), ("ones", "0")):
        params = parse(batch=2, hidden=hidden, index=index)
        arguments = dict(bench.op.arguments(params, bench.buffers(params)))
        spoiled = {f"{kind}{unused}": torch.full_like(arguments[f"{kind}{unused}"], special) for kind in ("scale", "shift", "gate")}
        clean, found = kernel(**arguments), kernel(**(arguments | spoiled))
        if not all(torch.equal(one, other) for one, other in zip(clean, found, strict=True)):
            return True
    return False


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("special", few([math.nan, math.inf], math.nan), ids=str)
def test_the_row_set_that_is_not_asked_for_stays_out(bench: Any, parse: Any, kernel: str, special: float) -> None:
    for hidden in (64, 1032):
        assert not leaks(bench.kernel(kernel), bench, parse, special, hidden)


def test_a_leak_would_be_seen(bench: Any, parse: Any) -> None:
    """The test above on a planted defect: selection by arithmetic."""

    def blended(**arguments: Any) -> tuple[torch.Tensor]:
        share = arguments["index"].unsqueeze(-1).to(arguments["x"].dtype)
        return ((1 - share) * arguments["gate0"].unsqueeze(1) + share * arguments["gate1"].unsqueeze(1),)

    assert leaks(blended, bench, parse, math.nan, 64)


@pytest.mark.parametrize("kernel", TRITON)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf], ids=str)
def test_nan_and_inf_stay_in_their_row_and_zeros_become_the_shift(bench: Any, parse: Any, kernel: str, special: float) -> None:
    params = parse(tokens=20, hidden=72, index="alternating")
    buffers = {name: buffer.clone() for name, buffer in bench.buffers(params).items()}
    for name in {"x", "residual"} & set(buffers):
        buffers[name][0, 7] = 0.0
    buffers["x"][0, 4, 70] = special
    reference, outputs = bench.reference(params, buffers), bench.run(kernel, params, buffers)
    for name, value in outputs.items():
        torch.testing.assert_close(value.isnan(), reference[name].isnan(), msg=f"NaN of {name}")
        torch.testing.assert_close(value.isinf(), reference[name].isinf(), msg=f"Inf of {name}")
        assert value[0, [row for row in range(20) if row != 4]].isfinite().all()
    assert outputs["y"][0, 4].isnan().any()
    assert torch.equal(outputs["y"][0, 7], buffers["shift1"].flatten())


@pytest.mark.parametrize("kernel", TRITON)
@pytest.mark.parametrize("shape", [(0, 5, 64), (2, 0, 64)], ids=str)
def test_an_empty_batch_is_no_launch(bench: Any, parse: Any, kernel: str, shape: tuple[int, ...]) -> None:
    params = parse(batch=max(1, shape[0]), tokens=max(1, shape[1]), hidden=64)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            arguments[name] = value[: shape[0], : shape[1]] if value.dim() == 3 or name == "index" else value[: shape[0]]
    returned = bench.kernel(kernel)(**arguments)
    assert [tuple(output.shape) for output in returned] == [shape] * len(bench.op.outputs)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "batch": draw(st.integers(1, 3)),
        "tokens": draw(st.integers(1, 9)),
        "hidden": 8 * draw(st.integers(1, 40)),
        "affine": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "float32"])),
        "modulation_dtype": draw(st.sampled_from(["activation", "float32"])),
        "strided": draw(st.booleans()),
        "index_dtype": draw(st.sampled_from(["int32", "int64", "bool"])),
        "index": draw(st.sampled_from(["step", "zeros", "ones", "alternating", "random"])),
    }


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(shape=shapes(), seed=st.integers(0, 2**16))
def test_any_shape_is_rounded_once(bench: Any, parse: Any, one_rounding: Any, shape: dict[str, Any], seed: int) -> None:
    params = parse(**shape)
    buffers = bench.buffers(params, seed)
    reference = bench.reference(params, buffers)
    for kernel in FUSED:
        for output, value in bench.run(kernel, params, buffers).items():
            assert one_rounding(value, reference[output]) <= 1, (kernel, output)
