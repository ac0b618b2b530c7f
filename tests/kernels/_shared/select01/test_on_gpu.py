"""What only a GPU can show: every kernel on every edge case, the compiler's default backend, alignment, 64-bit offsets, CUDA C++."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.registry import dispatch
from fusebench.registry.signature import positional_names

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[4]
FUSED = ("fused_triton@1", "fused_triton@2", "fused_triton@4", "fused_cuda@1")
SOME = ("tokens_257", "float16_affine", "bfloat16_float32_modulation_affine", "strided", "float32", "short_rows_odd")
"""Edge cases for kernels that are no fusion."""
EDGES = {
    case["name"]: case["params"]
    for case in tomllib.loads((ROOT / "suites" / "edges_select01.toml").read_text())["case"]
    if not case["name"].startswith("residual_")  # which differ in their op alone
}


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(kernel, name) for kernel in FUSED for name in EDGES]
    + [(kernel, name) for kernel in ("split_triton@1", "split_torch@1") for name in SOME],
)
def test_every_edge_case_passes_the_gate(bench: Any, kernel: str, name: str) -> None:
    params, others = bench.op.parse_params(EDGES[name]), bench.collection.kernels
    accuracy = check_kernel(bench.kernel(kernel), bench.op, params, split=bench.split, others=others, device=bench.device, seed=11)
    assert accuracy.passed, accuracy.reason
    assert not accuracy.interpreted


@pytest.mark.parametrize("name", SOME)
def test_the_compiled_split_chain_passes_the_gate(bench: Any, name: str) -> None:
    torch._dynamo.reset()
    params = bench.op.parse_params(EDGES[name])
    accuracy = check_kernel(bench.kernel("compiled@1"), bench.op, params, split=bench.split, device=bench.device, seed=11)
    assert accuracy.passed, accuracy.reason


@pytest.mark.parametrize("kernel", FUSED)
def test_torch_compile_takes_a_full_graph_to_as_exact_a_result(bench: Any, parse: Any, one_rounding: Any, kernel: str) -> None:
    """Not bit for bit: under torch.compile a Triton launch may contract."""
    torch._dynamo.reset()
    params = parse(batch=2, tokens=33, hidden=3072, affine=True, index="random")
    buffers = bench.buffers(params)
    keywords = dict(bench.op.arguments(params, buffers))
    tensors = [keywords.pop(name) for name in positional_names(bench.op.schema)]
    fused = bench.kernel(kernel)

    def block(*given: torch.Tensor) -> Any:
        return tuple(output + 0 for output in fused(*given, **keywords))

    reference = bench.reference(params, buffers)
    for name, value in zip(bench.op.outputs, torch.compile(block, fullgraph=True)(*tensors), strict=True):
        assert one_rounding(value, reference[name]) <= 1, name


@pytest.mark.parametrize("index", ["step", "zeros", "ones", "alternating", "random"])
@pytest.mark.parametrize("hidden", [64, 3072])
def test_cuda_takes_the_set_that_the_index_names(bench: Any, parse: Any, index: str, hidden: int) -> None:
    params = parse(batch=2, tokens=37, hidden=hidden, index=index)
    arguments = bench.op.arguments(params, bench.buffers(params))
    due = bench.kernel("split_torch@1")(**arguments)[-1]
    assert torch.equal(bench.kernel("fused_cuda@1")(**arguments)[-1], due)


@pytest.mark.parametrize(("dtype", "high"), [("int64", 2**32), ("int32", -1)])
def test_cuda_takes_whatever_is_not_zero_for_set_one(bench: Any, parse: Any, dtype: str, high: int) -> None:
    params = parse(tokens=37, index_dtype=dtype)
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    index = arguments["index"]
    found = bench.kernel("fused_cuda@1")(**(arguments | {"index": index * high}))
    for value, due in zip(found, bench.kernel("fused_cuda@1")(**arguments), strict=True):
        assert torch.equal(value, due)


@pytest.mark.parametrize("special", [float("nan"), float("inf")], ids=str)
def test_the_row_set_that_is_not_asked_for_stays_out_of_cuda(bench: Any, parse: Any, special: float) -> None:
    params = parse(batch=2, index="zeros")
    arguments = dict(bench.op.arguments(params, bench.buffers(params)))
    spoiled = {f"{kind}1": torch.full_like(arguments[f"{kind}1"], special) for kind in ("scale", "shift", "gate")}
    due, found = (bench.kernel("fused_cuda@1")(**call) for call in (arguments, arguments | spoiled))
    assert all(torch.equal(one, other) for one, other in zip(due, found, strict=True))


def unaligned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as a contiguous view that starts one element into its memory."""
    return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_views_that_start_anywhere_give_the_right_result(bench: Any, parse: Any, one_rounding: Any, kernel: str, dtype: str) -> None:
    params = parse(batch=2, tokens=9, hidden=1536, dtype=dtype, affine=True, index="random")
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)
    # One at a time, then all: each has a vector width of its own.
    for moved in [*((name,) for name in buffers), tuple(buffers)]:
        mixed = {name: unaligned(buffer) if name in moved else buffer.clone() for name, buffer in buffers.items()}
        arguments = bench.op.arguments(params, mixed)  # not through a run, which copies to aligned memory
        for name, value in zip(bench.op.outputs, bench.kernel(kernel)(**arguments), strict=True):
            assert one_rounding(value, reference[name]) <= 1, f"{name} with {', '.join(moved)} unaligned"


@pytest.mark.parametrize("kernel", FUSED)
def test_offsets_beyond_two_to_the_31_elements_reach_the_right_token(bench: Any, parse: Any, one_rounding: Any, kernel: str) -> None:
    """270 000 rows: inputs of one row for all, so that the outputs alone are large."""
    tokens, hidden, last = 270_000, 8192, 8
    assert (tokens - last) * hidden > 2**31
    params = parse(tokens=last, hidden=hidden, index="alternating")
    small = dict(bench.op.arguments(params, bench.buffers(params)))
    activations = [name for name in ("x", "residual", "residual_gate") if name in small]
    large = {name: small[name][:, :1].expand(1, tokens, hidden) for name in activations}
    index = torch.zeros(1, tokens, dtype=torch.int32, device=bench.device)
    index[:, -last:] = small["index"]
    outputs = bench.kernel(kernel)(**(small | large | {"index": index}))
    same = {name: small[name][:, :1].expand(1, last, hidden) for name in activations}
    reference = bench.op.reference(params, small | same)
    for name, value in zip(bench.op.outputs, outputs, strict=True):
        assert one_rounding(value[:, -last:], reference[name]) <= 1, name


@pytest.mark.parametrize("kernel", FUSED)
def test_inputs_beyond_two_to_the_31_elements_are_read_at_the_right_token(bench: Any, parse: Any, one_rounding: Any, kernel: str) -> None:
    tokens, width, last = 40_000, 60_000, 8  # column slices of a tensor of 4.8 GB
    assert (tokens - last) * width > 2**31
    params = parse(tokens=last, hidden=512, index="random")
    small = dict(bench.op.arguments(params, bench.buffers(params)))
    packed = torch.zeros(1, tokens, width, dtype=torch.bfloat16, device=bench.device)
    large = {}
    for number, name in enumerate(name for name in ("x", "residual", "residual_gate") if name in small):
        large[name] = packed[..., 512 * number : 512 * (number + 1)]
        large[name][:, -last:] = small[name]
    index = torch.zeros(1, tokens, dtype=torch.int32, device=bench.device)
    index[:, -last:] = small["index"]
    outputs = bench.kernel(kernel)(**(small | large | {"index": index}))
    reference = bench.op.reference(params, small)
    for name, value in zip(bench.op.outputs, outputs, strict=True):
        assert one_rounding(value[:, -last:], reference[name]) <= 1, name


@pytest.mark.parametrize("kernel", FUSED)
def test_a_hundred_thousand_rows_are_all_right(bench: Any, parse: Any, one_rounding: Any, kernel: str) -> None:
    params = parse(batch=2, tokens=50_001, hidden=512, index="random", affine=True)
    buffers = bench.buffers(params)
    reference = bench.reference(params, buffers)
    for name, value in bench.run(kernel, params, buffers).items():
        assert one_rounding(value, reference[name]) <= 1, name


def test_dispatch_picks_a_fused_kernel_that_is_right(bench: Any, parse: Any, one_rounding: Any) -> None:
    params = parse(batch=2, index="random")
    buffers = bench.buffers(params)
    arguments, reference = bench.op.arguments(params, buffers), bench.reference(params, buffers)
    call = dispatch(bench.op.name, collection=bench.collection)
    assert call.explain(**arguments).kernel.startswith(f"{bench.op.name}/fused_"), "which one is the GPU's table to say"
    for name, value in zip(bench.op.outputs, call(**arguments), strict=True):
        assert one_rounding(value, reference[name]) <= 1
    assert call.fallbacks == []


def test_host_memory_is_refused_and_the_context_lives_on(bench: Any, parse: Any) -> None:
    params = parse()
    buffers = bench.buffers(params)
    for kernel in FUSED:
        on_host = {name: buffer.cpu() for name, buffer in buffers.items()}
        with pytest.raises(ValueError, match="argument x: found device cpu; accepted is a CUDA device"):
            bench.kernel(kernel)(**bench.op.arguments(params, on_host))
    torch.cuda.synchronize()
    assert bench.run("fused_cuda@1", params, buffers)["y"].isfinite().all()
