"""The fused kernels of the norm_tanh ops as torch operators: torch's own checks pass, a full graph is traced, results are the eager call's.

The Triton kernels run here on the GPU or in the interpreter.  Without a GPU the CUDA kernel's operator can be looked at, not run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.registry import dispatch
from fusebench.registry.signature import positional_names
from helpers.matrices import few

FUSED_TRITON = ("fused_triton@1", "fused_triton@2", "fused_triton@3")
FUSED = [*FUSED_TRITON, pytest.param("fused_cuda@1", marks=pytest.mark.gpu)]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "affine, float32 modulation": {"affine": True, "affine2": True, "modulation_dtype": "float32", "batch": 2, "norm": "layer"},
    "frames, strided": {"batch": 2, "tokens": 6, "frames": 2, "modulation": "frame", "strided": True},
    "residual per channel": {"residual": "channel", "scale2": "token"},
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def call(bench: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments."""
    keywords = dict(bench.op.arguments(params, bench.buffers(params)))
    return [keywords.pop(name) for name in positional_names(bench.op.schema)], keywords


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", few(CASES, "affine, float32 modulation", "frames, strided"))
def test_torchs_operator_check_passes(tanh_bench: Any, tanh_case: Any, kernel: str, name: str) -> None:
    tensors, keywords = call(tanh_bench, tanh_case(**CASES[name]))
    torch.library.opcheck(tanh_bench.kernel(kernel).torch_op, tuple(tensors), keywords)


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", few(CASES, "affine, float32 modulation", "frames, strided"))
def test_a_full_graph_is_traced_and_equals_the_eager_call(tanh_bench: Any, tanh_case: Any, kernel: str, name: str) -> None:
    tensors, keywords = call(tanh_bench, tanh_case(**CASES[name]))
    fused = tanh_bench.kernel(kernel)

    def block(residual: torch.Tensor, x: torch.Tensor, *rest: Any) -> Any:
        """As a model has it: something before the norm, and something that reads the result."""
        returned = fused(residual, x * 2, *rest, **keywords)
        return returned * 2 if isinstance(returned, torch.Tensor) else returned[0] + returned[1]

    eager = block(*tensors)
    traced = torch.compile(block, fullgraph=True, backend="aot_eager")(*tensors)
    torch.testing.assert_close(traced, eager, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", [*FUSED_TRITON, "fused_cuda@1"])
def test_the_operator_has_the_ops_schema_and_a_fake(tanh_bench: Any, tanh_case: Any, kernel: str) -> None:
    op, operator = tanh_bench.op, tanh_bench.kernel(kernel).torch_op
    assert str(operator._opoverload._schema).partition("(")[2] == str(torch._C.parse_schema(f"a::b{op.schema}")).partition("(")[2]
    tensors, keywords = call(tanh_bench, tanh_case(strided=True))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [None if tensor is None else mode.from_tensor(tensor) for tensor in tensors]
        returned = operator(*fakes, **keywords)
    outputs = (returned,) if isinstance(returned, torch.Tensor) else returned
    assert len(outputs) == len(op.outputs)
    for output in outputs:
        assert (output.shape, output.dtype) == (tensors[1].shape, tensors[1].dtype)
        assert output.is_contiguous()


def test_other_kernels_are_left_to_torch(tanh_bench: Any) -> None:
    for name in ("split_torch@1", "split_triton@1", "compiled@1"):
        assert tanh_bench.kernel(name).torch_op is None


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_kernel_is_the_split_chain_in_one_graph(tanh_bench: Any, tanh_case: Any, name: str, one_graph: Any) -> None:
    params = tanh_case(**CASES[name])
    buffers = tanh_bench.buffers(params)
    traced, eager = one_graph(tanh_bench, params, buffers), tanh_bench.run("split_torch@1", params, buffers)
    for output in tanh_bench.op.outputs:
        torch.testing.assert_close(traced[output], eager[output], rtol=0.02, atol=0.02)


def test_dispatch_picks_the_tuned_triton_kernel(tanh_bench: Any, tanh_case: Any, gated_error: Any) -> None:
    params = tanh_case(batch=2, affine=True)
    buffers = tanh_bench.buffers(params)
    fused = dispatch(tanh_bench.op.name, collection=tanh_bench.collection)
    tensors, keywords = call(tanh_bench, params)
    if tanh_bench.device.type == "cuda":  # on a CPU nothing but the split chain is dispatched to
        assert fused.explain(*tensors, **keywords).kernel == f"{tanh_bench.op.name}/fused_triton@3"
    returned = fused(*tensors, **keywords)
    outputs = (returned,) if isinstance(returned, torch.Tensor) else returned
    assert [output.shape for output in outputs] == [tensors[1].shape] * len(tanh_bench.op.outputs)
    if tanh_bench.device.type == "cuda":
        assert gated_error(params, buffers, dict(zip(tanh_bench.op.outputs, outputs, strict=True))) <= 1
