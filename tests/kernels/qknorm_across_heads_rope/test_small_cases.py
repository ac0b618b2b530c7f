"""Every Triton kernel on small cases: on a GPU where there is one, in the interpreter elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel

CASES: dict[str, dict[str, Any]] = {
    "two exact tiles": {"heads": 12},
    "one exact tile": {"heads": 4},
    "one masked tile": {"heads": 7},
    "neither heads nor size fill a tile": {"heads": 5, "head_dim": 80},
    "k narrower": {"heads": 6, "kv_heads": 2, "packed": True},
    "two samples": {"tokens": 2, "batch": 2},
    "16-bit table": {"cache_dtype": "activation", "dtype": "float16"},
    "no weights": {"affine": False, "head_dim": 64},
    "float32": {"dtype": "float32", "head_dim": 96},
}
FUSED = ("fused_triton@1", "fused_triton@2")


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", CASES)
def test_a_fused_kernel_rounds_once(bench: Any, parse: Any, one_rounding: Any, kernel: str, name: str) -> None:
    params = parse(**CASES[name])
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)
    for output, value in bench.run(kernel, params, buffers).items():
        assert one_rounding(value.flatten(1), reference[output].flatten(1)) <= 1, output


def test_the_split_chain_rounds_more_than_once(bench: Any, parse: Any, one_rounding: Any) -> None:
    """The measure of the test above on a defect: a second rounding."""
    params = parse()
    buffers = bench.buffers(params)
    output = bench.run("split_triton@1", params, buffers)["q"]
    assert one_rounding(output.flatten(1), bench.reference(params, buffers)["q"].flatten(1)) > 1


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
def test_every_triton_kernel_passes_the_gate(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(heads=6, kv_heads=3, packed=True, tokens=2)
    accuracy = check_kernel(bench.kernel(kernel), bench.op, params, split=bench.split, device=bench.device, seed=3)
    assert accuracy.passed, accuracy.reason


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
def test_the_norm_is_across_heads_and_stays_in_its_token(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(tokens=2)
    buffers = bench.buffers(params)
    buffers["q"][0, 1, 5] = math.nan
    buffers["k"][1] = 0.0
    outputs = bench.run(kernel, params, buffers)
    assert outputs["q"][0].isnan().all(), "a NaN in one head reaches all heads of its token"
    assert outputs["q"][1].isfinite().all()
    assert outputs["k"][1].eq(0).all()


@pytest.mark.parametrize("kernel", [*FUSED, "split_triton@1"])
def test_a_packed_projections_values_are_left_alone(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(heads=4, kv_heads=2, head_dim=80, packed=True)
    buffers = {name: buffer.clone() for name, buffer in bench.buffers(params).items()}
    before = buffers["qkv"].clone()
    bench.kernel(kernel)(**bench.op.arguments(params, buffers))
    assert torch.equal(buffers["qkv"][:, 6:], before[:, 6:])
    assert not torch.equal(buffers["qkv"][:, :6], before[:, :6])


@pytest.mark.parametrize("kernel", FUSED)
def test_a_full_graph_is_traced_and_equals_the_eager_call(bench: Any, parse: Any, kernel: str) -> None:
    torch._dynamo.reset()
    params = parse(heads=2, head_dim=64, tokens=2, packed=True)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    names = ("q", "k", "q_weight", "k_weight", "cos_sin_cache")
    _, _, *rest = (arguments.pop(name) for name in names)
    fused, source = bench.kernel(kernel), bench.buffers(params)["qkv"]

    def block(projection: torch.Tensor) -> torch.Tensor:
        projection = projection * 1
        fused(projection[:, :2], projection[:, 2:4], *rest, **arguments)
        return projection + 0  # through the base, which no argument of the kernel is

    eager = block(source)
    assert torch.equal(torch.compile(block, fullgraph=True, backend="aot_eager")(source), eager)
    assert not torch.equal(eager, source), "the kernel ran"
