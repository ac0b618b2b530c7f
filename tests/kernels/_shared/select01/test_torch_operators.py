"""The fused kernels as torch operators: torch's own checks pass, a full graph is traced, and its results are the eager call's.

The Triton kernels run here on the GPU or in the interpreter.  Without a GPU the CUDA kernel's operator can be looked at, not run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusebench.registry.signature import positional_names

FUSED_TRITON = ("fused_triton@1", "fused_triton@2", "fused_triton@4")
FUSED = [*FUSED_TRITON, pytest.param("fused_cuda@1", marks=pytest.mark.gpu)]

CASES: dict[str, dict[str, Any]] = {
    "plain": {"batch": 2, "index": "alternating"},
    "affine, float32 rows, strided": {"affine": True, "modulation_dtype": "float32", "strided": True, "index_dtype": "bool"},
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def call(bench: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments."""
    keywords = dict(bench.op.arguments(params, bench.buffers(params)))
    return [keywords.pop(name) for name in positional_names(bench.op.schema)], keywords


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", CASES)
def test_torchs_operator_check_passes(bench: Any, parse: Any, kernel: str, name: str) -> None:
    tensors, keywords = call(bench, parse(**CASES[name]))
    torch.library.opcheck(bench.kernel(kernel).torch_op, tuple(tensors), keywords)


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", CASES)
def test_a_full_graph_is_traced_and_equals_the_eager_call(bench: Any, parse: Any, kernel: str, name: str) -> None:
    tensors, keywords = call(bench, parse(**CASES[name]))
    fused = bench.kernel(kernel)

    def block(first: torch.Tensor, *rest: Any) -> Any:
        """As a model has it: something before the norm, and something that reads the result."""
        returned = fused(first * 2, *rest, **keywords)
        return returned[0] + returned[-1]

    eager = block(*tensors)
    traced = torch.compile(block, fullgraph=True, backend="aot_eager")(*tensors)
    torch.testing.assert_close(traced, eager, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", [*FUSED_TRITON, "fused_cuda@1"])
def test_the_operator_has_the_ops_schema_and_a_fake(collection: Any, op: Any, device: torch.device, kernel: str) -> None:
    operator = collection.kernel(f"{op.name}/{kernel}").torch_op
    assert str(operator._opoverload._schema).partition("(")[2] == str(torch._C.parse_schema(f"a::b{op.schema}")).partition("(")[2]
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 6, 128, dtype=torch.bfloat16, device=device)[..., 64:]
        given = dict.fromkeys(positional_names(op.schema), torch.empty(2, 64, dtype=torch.bfloat16, device=device))
        given |= {"weight": None, "bias": None, "index": torch.empty(2, 6, dtype=torch.int32, device=device)}
        given |= {name: x for name in ("residual", "x", "residual_gate") if name in given}
        returned = operator(**given)
        assert len(returned) == len(op.outputs)
        for output in returned:
            assert (output.shape, output.dtype) == (x.shape, x.dtype)
            assert output.is_contiguous()


def test_other_kernels_are_left_to_torch(collection: Any, op: Any) -> None:
    for name in ("split_torch@1", "split_triton@1", "compiled@1"):
        assert collection.kernel(f"{op.name}/{name}").torch_op is None


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_kernel_is_the_split_chain_in_one_graph(bench: Any, parse: Any, name: str, one_graph: Any) -> None:
    params = parse(**CASES[name])
    buffers = bench.buffers(params)
    traced, eager = one_graph(bench, params, buffers), bench.run("split_torch@1", params, buffers)
    for output in bench.op.outputs:
        torch.testing.assert_close(traced[output], eager[output], rtol=0.02, atol=0.02)
