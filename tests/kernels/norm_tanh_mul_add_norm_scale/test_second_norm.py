"""The second norm: its definition, that it takes the rounded y, and that a kernel which does not is seen."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.accuracy.comparison import Reference
from fusebench.accuracy.contracts import floor_ulps, judge_close

CPU = torch.device("cpu")
FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@3", "fused_triton@5")


@pytest.fixture(scope="session")
def bench(bench_of: Callable[[str], Any]) -> Any:
    """The op's kernels on the device where Triton runs."""
    return bench_of("norm_tanh_mul_add_norm_scale")


@pytest.fixture(scope="session")
def shared(op: Any) -> Any:
    """`shared("row_tiles")`: a module of kernels/_shared as the op sees it."""
    return modules(op)


def modules(op: Any) -> Any:
    root = type(op).__module__.partition(".")[0]
    return lambda name: importlib.import_module(f"{root}._shared.{name}")


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_y2_is_the_definition_computed_element_by_element(collection: Any, op: Any, parse: Any, norm: str) -> None:
    params = parse(batch=2, hidden=16, norm=norm, affine=True, affine2=True, scale2="token")
    arguments = op.arguments(params, op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(7)))
    found = op.reference(params, arguments)
    first = {name: arguments[name] for name in ("residual", "x", "gate", "weight", "bias", "eps", "norm")}
    inner = collection.op("norm_tanh_mul_add")
    case = inner.parse_params({"batch": 2, "tokens": 3, "hidden": 16, "norm": norm, "affine": True})
    assert torch.equal(found["y"], inner.reference(case, first)["y"])
    for batch in range(2):
        for token in range(3):
            row = [float(value) for value in found["y"][batch, token].bfloat16()]
            mean = sum(row) / 16 if norm == "layer" else 0.0
            deviation = math.sqrt(sum((value - mean) ** 2 for value in row) / 16 + params.eps)
            for channel in range(16):
                normed = (row[channel] - mean) / deviation * float(arguments["weight2"][channel])
                if norm == "layer":
                    normed += float(arguments["bias2"][channel])
                due = normed * (1 + float(arguments["scale2"][batch, token, channel]))
                assert math.isclose(float(found["y2"][batch, token, channel]), due, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("hidden", [96, 264])
def test_y2_is_the_second_norm_of_the_y_that_is_returned(bench: Any, parse: Any, tile_of: Any, kernel: str, hidden: int) -> None:
    """Statistics and values come from the rounded y: a launch of the second norm alone on y gives the same bits."""
    params = parse(hidden=hidden, batch=2, affine=True, affine2=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    y, y2 = bench.kernel(kernel)(**arguments)
    plan = bench.op.Arguments(**arguments).checked()
    shared = modules(bench.op)
    due = torch.empty_like(y)
    second = {name: arguments[name] for name in ("weight2", "bias2", "scale2", "eps", "norm")}
    if kernel == "fused_triton@5":
        cut = shared("row_tiles").few_rows_tile(hidden, 1.0)
    else:
        tile = tile_of(f"{bench.op.name}/{kernel}")
        cut = tile(hidden) if kernel == "fused_triton@1" else tile(hidden, plan.rows)
    shared("norm_tanh.launch").launch(plan, cut, y, y2=due, **second)
    torch.testing.assert_close(y2, due, rtol=0, atol=0)


def test_statistics_of_the_unrounded_y_would_be_seen(bench: Any, parse: Any, shared: Any, one_rounding: Any) -> None:
    """The elementwise bound on a planted defect: y2 of the y before its rounding."""
    params = parse(tokens=8, affine=True)
    arguments = bench.op.arguments(params, bench.buffers(params))
    y = bench.op.reference(params, arguments)["y"]
    second = {name: arguments[name] for name in ("weight2", "bias2", "scale2", "eps", "norm")}
    due = shared("norm_tanh.chain").reference_norm_scale(y.bfloat16(), **second)
    assert one_rounding(due.bfloat16(), due) <= 1
    assert one_rounding(shared("norm_tanh.chain").reference_norm_scale(y, **second).bfloat16(), due) > 1


def test_a_first_and_a_second_fusion_agree_on_y(bench: Any, parse: Any) -> None:
    """y is norm_tanh_mul_add's, to the bit."""
    params = parse(batch=2, affine=True, affine2=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    first = {name: arguments[name] for name in ("residual", "x", "gate", "weight", "bias", "eps", "norm")}
    for kernel in FUSED:
        y, _ = bench.kernel(kernel)(**arguments)
        assert torch.equal(bench.collection.kernel(f"norm_tanh_mul_add/{kernel}")(**first), y)


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
@pytest.mark.parametrize(("dtype", "residual_dtype"), [("bfloat16", "float32"), ("float32", "activation")])
def test_one_residual_value_far_above_the_gated_norm_leaves_the_second_norm_exact(
    bench: Any, parse: Any, kernel: str, dtype: str, residual_dtype: str
) -> None:
    """Rows of y are of one value: a layer norm makes zeros of them, and the bias alone is left."""
    settings = {"norm": "layer", "affine2": True, "dtype": dtype, "residual": "scalar", "residual_dtype": residual_dtype}
    params = parse(hidden=104, batch=2, **settings)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    arguments["residual"] = torch.full_like(arguments["residual"], -1.2345678e14)
    _, y2 = bench.kernel(kernel)(**arguments)
    due = arguments["bias2"].double() * (1 + arguments["scale2"].double())
    torch.testing.assert_close(y2.double(), due.expand_as(y2), rtol=2**-7 if dtype == "bfloat16" else 2**-22, atol=1e-30)


@pytest.mark.parametrize("affine2", [False, True])
def test_right_ways_to_take_the_mean_pass_beside_each_other_on_large_rows_that_are_all_equal(op: Any, parse: Any, affine2: bool) -> None:
    """A residual of 1e14 leaves nothing of x. A channel that equals its row's mean but for 1e-5 deviations, or whose bias leaves next to
    nothing of it, would show rounding alone."""
    params = parse(tokens=16, hidden=6144, dtype="float32", norm="layer", residual="channel", scale2="token", affine2=affine2)
    for seed in range(12):
        buffers = op.buffers(params, device=CPU, generator=torch.Generator().manual_seed(seed), magnitude=1e14)
        arguments = op.arguments(params, buffers)
        reference = Reference(op.reference(params, arguments)["y2"], torch.float32)
        y = arguments["residual"].expand(1, 16, 6144).float()
        scale = 1.0 + arguments["scale2"]
        mean = y.unflatten(-1, (-1, 256)).cumsum(-2)[..., -1, :].sum(-1, keepdim=True) / 6144
        weight, bias = arguments["weight2"], arguments["bias2"]
        summed = (y - mean) * torch.rsqrt(((y - mean) ** 2).mean(-1, keepdim=True))
        summed = (summed * weight + bias if affine2 else summed) * scale
        library = torch.nn.functional.layer_norm(y, (6144,), weight, bias, eps=params.eps) * scale
        errors = [reference.errors(one.reshape(reference.values.shape)) for one in (summed, library)]
        for kernel, split in (errors, errors[::-1]):
            found = judge_close(kernel, split, 1.5, floor_ulps(torch.float32), maxima=False)  # a maximum is drawn again
            assert found is None, f"seed {seed}: {found}"
