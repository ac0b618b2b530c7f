"""The fused kernels as torch operators: torch's own checks pass, a full graph is traced, and its results are the eager call's.

The Triton kernels run here on the GPU or in the interpreter.  Without a GPU the CUDA kernel's operator can be looked at, not run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.matrices import few

TENSORS = ("q", "k", "q_weight", "k_weight", "cos_sin_cache", "positions")

FUSED_TRITON = ("fused_triton@1", "fused_triton@2")
FUSED = [*FUSED_TRITON, pytest.param("fused_cuda@1", marks=pytest.mark.gpu)]

CASES = {
    "separate": {},
    "packed": {"packed": True, "kv_heads": 1},
    "neox, no weights": {"layout": "neox", "rope_dim": 64, "affine": False, "mode": "round_norm", "position_offset": 2},
    "packed neox": {"layout": "neox", "packed": True, "rope_dim": 32, "dtype": "float16"},
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def call(bench: Any, params: Any, buffers: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments on copies of `buffers`."""
    keywords = dict(bench.op.arguments(params, {name: buffer.clone() for name, buffer in buffers.items()}))
    return [keywords.pop(name) for name in TENSORS], keywords


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", few(["separate", "packed", "neox, no weights"], "packed", "neox, no weights"))
def test_torchs_operator_check_passes(bench: Any, parse: Any, kernel: str, name: str) -> None:
    params = parse(head_dim=64, heads=2, tokens=2, **CASES[name])
    tensors, keywords = call(bench, params, bench.buffers(params))
    torch.library.opcheck(bench.kernel(kernel).torch_op, tuple(tensors), keywords)


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", few(CASES, "separate", "packed neox"))
def test_a_full_graph_is_traced_and_equals_the_eager_call(bench: Any, parse: Any, kernel: str, name: str) -> None:
    params = parse(head_dim=64, heads=2, tokens=2, **CASES[name])
    buffers = bench.buffers(params)
    fused, heads, key_heads = bench.kernel(kernel), params.heads, params.key_heads

    def attention_inputs(projection: torch.Tensor, k: torch.Tensor, *rest: Any, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As a model has it: a projection, the kernel on it or on views of it, and something that reads the result."""
        projection = projection * 1
        if params.packed:
            q, k = projection[:, :heads], projection[:, heads : heads + key_heads]
        else:
            q, k = projection, k * 1
        fused(q, k, *rest, **keywords)
        # For packed projections: through the base too, which no argument of the kernel is.
        return projection + 0, torch.cat((q.flatten(), k.flatten()))

    compiled = torch.compile(attention_inputs, fullgraph=True, backend="aot_eager")
    results = []
    for function in (attention_inputs, compiled):
        (q, k, *rest), keywords = call(bench, params, buffers)
        source = buffers["qkv"].clone() if params.packed else q
        results.append(function(source, k, *rest, **keywords))
    for eager, traced in zip(*results, strict=True):
        assert torch.equal(eager, traced)
    assert not torch.equal(results[0][0], buffers["qkv"] if params.packed else buffers["q"]), "the kernel ran"


@pytest.mark.parametrize("kernel", FUSED)
def test_arguments_of_a_graph_are_overwritten(bench: Any, parse: Any, kernel: str) -> None:
    params = parse(head_dim=64, heads=2, tokens=2, packed=True)
    buffers = bench.buffers(params)
    due = bench.run(kernel, params, buffers)
    tensors, keywords = call(bench, params, buffers)
    fused = bench.kernel(kernel)
    torch.compile(lambda *tensors: fused(*tensors, **keywords), fullgraph=True, backend="aot_eager")(*tensors)
    assert torch.equal(tensors[0], due["q"])
    assert torch.equal(tensors[1], due["k"])


@pytest.mark.parametrize("kernel", [*FUSED_TRITON, "fused_cuda@1"])
def test_the_operator_has_the_ops_schema_and_a_fake(collection: Any, op: Any, kernel: str) -> None:
    operator = collection.kernel(f"qknorm_rope/{kernel}").torch_op
    schema = operator._opoverload._schema
    assert [argument.name for argument in schema.arguments if argument.alias_info is not None] == ["q", "k"]
    assert str(schema).partition("(")[2] == str(torch._C.parse_schema(f"a::b{op.schema}")).partition("(")[2]
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(2, 3, 64)
        assert operator(q, q.clone(), None, None, q.new_empty(2, 64), q.new_empty(2, dtype=torch.int64)) is None


def test_other_kernels_are_left_to_torch(collection: Any) -> None:
    for name in ("split_torch@1", "split_triton@1", "compiled@1"):
        assert collection.kernel(f"qknorm_rope/{name}").torch_op is None
