"""The fused kernels as torch operators: torch's own checks pass, a full graph is traced, and its results are the eager call's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.matrices import few

TENSORS = ("q", "k", "cos_cache", "sin_cache", "positions")
FUSED = ("fused_triton@1", "fused_triton@2")

CASES: dict[str, dict[str, Any]] = {
    "joint": {},
    "no k": {"kv_heads": 0},
    "2-D packed": {"rank": 2, "packed": True, "kv_heads": 1},
    "4-D separate by index": {"rank": 4, "caches": "separate", "positions": "index", "layout": "neox", "rope_dim": 32},
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def call(bench: Any, params: Any, buffers: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments on copies of `buffers`."""
    keywords = dict(bench.op.arguments(params, {name: buffer.clone() for name, buffer in buffers.items()}))
    return [keywords.pop(name) for name in TENSORS], keywords


def small(parse: Any, name: str) -> Any:
    return parse(**({"head_dim": 64, "heads": 2, "tokens": 2, "position_offset": 1} | CASES[name]))


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", few(CASES, "no k", "4-D separate by index"))
def test_torchs_operator_check_passes(bench: Any, parse: Any, kernel: str, name: str) -> None:
    params = small(parse, name)
    tensors, keywords = call(bench, params, bench.buffers(params))
    torch.library.opcheck(bench.kernel(kernel).torch_op, tuple(tensors), keywords)


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("name", few(CASES, "no k", "4-D separate by index"))
def test_a_full_graph_is_traced_and_equals_the_eager_call(bench: Any, parse: Any, kernel: str, name: str) -> None:
    params = small(parse, name)
    buffers = bench.buffers(params)
    fused = bench.kernel(kernel)

    def attention_inputs(q: torch.Tensor, k: torch.Tensor | None, *rest: Any, **keywords: Any) -> tuple[torch.Tensor, ...]:
        q, k = q * 1, None if k is None else k * 1
        fused(q, k, *rest, **keywords)
        return tuple(x + 0 for x in (q, k) if x is not None)

    compiled = torch.compile(attention_inputs, fullgraph=True, backend="aot_eager")
    results = []
    for function in (attention_inputs, compiled):
        tensors, keywords = call(bench, params, buffers)
        results.append(function(*tensors, **keywords))
        assert not torch.equal(results[-1][0], tensors[0]), "the kernel ran"
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(eager, traced, rtol=2**-8, atol=0)


@pytest.mark.parametrize("kernel", FUSED)
def test_the_operator_has_the_ops_schema(collection: Any, op: Any, kernel: str) -> None:
    def form(schema: Any) -> list[tuple[Any, ...]]:
        # Not the schema's text: a Triton operator's is inferred, and spells integers and alias sets in another way.
        return [(one.name, str(one.type), one.kwarg_only, one.alias_info is not None) for one in schema.arguments]

    schema = collection.kernel(f"rotary_embedding/{kernel}").torch_op._opoverload._schema
    assert form(schema) == form(torch._C.parse_schema(f"a::b{op.schema}"))
    assert [name for name, _, _, mutated in form(schema) if mutated] == ["q", "k"]
    assert not schema.returns
