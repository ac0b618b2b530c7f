"""The fused kernels of both modulated norms as torch operators: torch's own checks pass, a full graph is traced and equals the eager call.

The Triton kernels run here on the GPU or in the interpreter.  Without a GPU the CUDA kernel's operator can be looked at, not run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.registry.signature import positional_names
from helpers.matrices import few

FUSED_TRITON = ("fused_triton@1", "fused_triton@2", "fused_triton@4")
FUSED = [*FUSED_TRITON, pytest.param("fused_cuda@1", marks=pytest.mark.gpu)]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "affine, float32 modulation": {"affine": True, "modulation_dtype": "float32", "batch": 2},
    "frames, strided": {"batch": 2, "tokens": 6, "frames": 2, "modulation": "frame", "strided": True, "norm": "rms"},
    "no gate": {"gate": "none"},
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture(params=few(CASES, "affine, float32 modulation", "frames, strided"))
def params(request: pytest.FixtureRequest, parse: Any, gated: bool) -> Any:
    if "gate" in CASES[request.param] and not gated:
        pytest.skip("the op has no gate")
    return parse(**CASES[request.param])


def call(bench: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments."""
    keywords = dict(bench.op.arguments(params, bench.buffers(params)))
    return [keywords.pop(name) for name in positional_names(bench.op.schema)], keywords


def as_tuple(returned: Any) -> tuple[torch.Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


@pytest.mark.parametrize("kernel", FUSED)
def test_torchs_operator_check_passes(bench: Any, params: Any, kernel: str) -> None:
    tensors, keywords = call(bench, params)
    torch.library.opcheck(bench.kernel(kernel).torch_op, tuple(tensors), keywords)


@pytest.mark.parametrize("kernel", FUSED)
def test_a_full_graph_is_traced_and_equals_the_eager_call(bench: Any, params: Any, kernel: str) -> None:
    tensors, keywords = call(bench, params)
    fused = bench.kernel(kernel)

    def block(first: torch.Tensor, *rest: Any) -> Any:
        """As a model has it: something before the norm, and something that reads the results."""
        return sum(as_tuple(fused(first * 2, *rest, **keywords)))

    eager = block(*tensors)
    traced = torch.compile(block, fullgraph=True, backend="aot_eager")(*tensors)
    torch.testing.assert_close(traced, eager, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", [*FUSED_TRITON, "fused_cuda@1"])
def test_the_operator_has_the_ops_schema_and_a_fake(bench: Any, activations: Any, modulations: Any, kernel: str) -> None:
    op = bench.op
    operator = bench.kernel(kernel).torch_op
    assert str(operator._opoverload._schema).partition("(")[2] == str(torch._C.parse_schema(f"a::b{op.schema}")).partition("(")[2]
    with torch._subclasses.FakeTensorMode():
        x, row = torch.empty(2, 6, 128, dtype=torch.bfloat16, device=bench.device)[..., 64:], torch.empty(64, device=bench.device)
        call = dict.fromkeys(("weight", "bias")) | dict.fromkeys(activations, x) | dict.fromkeys(modulations, row)
        returned = as_tuple(operator(**call))
        assert len(returned) == len(op.outputs)
        for output in returned:
            assert (output.shape, output.dtype) == (x.shape, x.dtype)
            assert output.is_contiguous()


def test_other_kernels_are_left_to_torch(bench: Any) -> None:
    for name in ("split_torch@1", "split_triton@1", "compiled@1"):
        assert bench.kernel(name).torch_op is None


def test_the_compiled_kernel_is_the_split_chain_in_one_graph(bench: Any, params: Any, one_graph: Any) -> None:
    buffers = bench.buffers(params)
    traced, eager = one_graph(bench, params, buffers), bench.run("split_torch@1", params, buffers)
    for output in bench.op.outputs:
        torch.testing.assert_close(traced[output], eager[output], rtol=0.02, atol=0.02)
