"""`dispatch` of every op in `torch.compile(fullgraph=True)`: the fallback on a CPU, the fused kernel for a GPU's tensors."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import fusebench
from fusebench.registry import Collection, dispatch
from fusebench.registry.signature import positional_names
from helpers.forked_workers import run_module

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    """A strided or packed edge case of each op; any edge case of an op that has none."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((ROOT / "suites").glob("edges_*.toml")):
        suite = tomllib.loads(file.read_text())
        for case in suite.get("case", []):
            params = case["params"]
            if not any(isinstance(value, list) for value in params.values()):
                op = case.get("op") or suite["op"]
                if op not in found or ((params.get("strided") or params.get("packed")) and not (found[op].keys() & {"strided", "packed"})):
                    found[op] = params
    return found


def call_of(collection: Collection, name: str, raw: dict[str, Any], device: str = "cpu") -> tuple[list[Any], dict[str, Any]]:
    """Tensors and keywords of a call of a few tokens."""
    op = collection.op(name)
    params = op.shrink(op.parse_params(raw), 12)
    buffers = op.buffers(params, device=torch.device(device), generator=torch.Generator(device).manual_seed(0))
    keywords = dict(op.arguments(params, buffers))
    return [keywords.pop(name) for name in positional_names(op.schema)], keywords


def model(chosen: Any, keywords: dict[str, Any]) -> Any:
    """As a model has it: something before the op, and something that reads its result."""

    def block(*tensors: Any) -> tuple[torch.Tensor, ...]:
        returned = chosen(*tensors, **keywords)
        return tuple(each + 1 for each in (returned if isinstance(returned, tuple) else (returned,)))

    return block


def compare_with_eager(collection: Collection, name: str, raw: dict[str, Any], backend: Any, **tolerance: float) -> None:
    chosen = dispatch(name, collection=collection)
    due_tensors, keywords = call_of(collection, name, raw)
    tensors, _ = call_of(collection, name, raw)
    due = model(chosen, keywords)(*due_tensors)
    compiled = torch.compile(model(chosen, keywords), fullgraph=True, backend=fusebench.counting_backend(backend))
    with fusebench.count_calls() as calls:
        outputs = compiled(*tensors)
    torch.testing.assert_close(outputs, due, **tolerance)
    torch.testing.assert_close(tensors, due_tensors, **tolerance)  # overwritten, and nothing else
    ((selection, count),) = calls.items()
    assert (selection.kernel, count) == (f"{name}/{collection.op(name).split_reference}", 1)
    assert selection in chosen.fallbacks


def test_the_fallback_is_traced_to_the_eager_results_bit_for_bit(collection: Collection, cases: Any, each_op: str) -> None:
    compare_with_eager(collection, each_op, cases[each_op], "aot_eager", rtol=0, atol=0)


@pytest.mark.exhaustive  # a C++ compiler's seconds
@pytest.mark.parametrize("name", ["qknorm_rope", "norm_scale_shift_gate_select01"])
def test_inductor_compiles_the_fallback(collection: Collection, cases: Any, name: str) -> None:
    compare_with_eager(collection, name, cases[name], "inductor", rtol=2e-2, atol=2e-2)


@pytest.fixture
def runs_anywhere(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Dispatch chooses fused kernels in the interpreter, too."""
    monkeypatch.setattr(sys.modules["fusebench.registry.dispatching.dispatcher"], "reason_not_runnable", lambda kernel, on: None)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_a_fused_kernel_overwrites_views_of_a_packed_projection(
    collection: Collection, device: torch.device, runs_anywhere: None, backend: str
) -> None:
    params = {"tokens": 5, "heads": 4, "kv_heads": 2, "head_dim": 64, "layout": "interleaved", "packed": True}
    (q, _, *rest), keywords = call_of(collection, "qknorm_rope", params)
    chosen = dispatch("qknorm_rope", collection=collection)
    rest = [each.to(device) for each in rest]

    def block(projection: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed = projection + 1
        q, k, v = packed[:, :4], packed[:, 4:6], packed[:, 6:]
        overwritten, _ = chosen(q, k, *rest, **keywords)
        return packed, overwritten * 2, v + k

    projection = q._base.to(device)
    due = block(projection)
    compiled = torch.compile(block, fullgraph=True, backend=fusebench.counting_backend(backend))
    with fusebench.count_calls() as calls:
        outputs = compiled(projection)
    torch.testing.assert_close(outputs, due, rtol=0, atol=0)
    assert [(selection.kernel, count) for selection, count in calls.items()] == [("qknorm_rope/fused_triton@3", 1)]
    assert chosen.fallbacks == []


NEWEST = {
    "norm_tanh_mul_add": "fused_triton@4",
    "norm_tanh_mul_add_norm_scale": "fused_triton@4",
    "norm_scale_shift_gate_select01": "fused_triton@4",
    "residual_norm_scale_shift_gate_select01": "fused_triton@4",
    "qknorm_rope": "fused_triton@3",
    "rotary_embedding": "fused_triton@3",
}
"""The kernel that each op's dispatch takes for few rows on a GPU without a table; `fused_triton@2` for the others."""


@pytest.fixture(scope="module")
def on_a_gpu(cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a GPU's tensors are traced to, by op: see helpers/traced_kernels.py."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    wanted = [(op, params, op == "norm_scale_shift" or None) for op, params in cases.items()]  # one with every size a symbol
    done = run_module(["helpers.traced_kernels", json.dumps(wanted)], environment, ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_for_tensors_on_a_gpu_the_graph_holds_the_fused_kernel_alone(on_a_gpu: dict[str, Any], each_op: str) -> None:
    found = on_a_gpu[each_op]
    assert found["kernels"] == {f"{each_op}/{NEWEST.get(each_op, 'fused_triton@2')}": 1}
    assert found["fallbacks"] == []
    (graph,) = found["graphs"]
    computing = [node for node in graph if not node.startswith(("<built-in function", "aten.sym_"))]  # tuples and sizes
    launches = [node for node in computing if "triton_kernel_wrapper" in node or f"{each_op}__fused_triton" in node]
    assert len(launches) == 1, graph
    around = ("clone.default", "new_empty.default", "add.Tensor")
    assert not [node for node in computing if node not in launches and not any(name in node for name in around)], graph


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_calls_on_a_gpu_equal_eager_ones(collection: Collection, cases: Any, each_op: str, mode: str) -> None:
    chosen = dispatch(each_op, collection=collection)
    tensors, keywords = call_of(collection, each_op, cases[each_op], "cuda")

    def block(*given: Any) -> Any:
        given = [None if each is None else each.clone() for each in given]
        returned = chosen(*given, **keywords)
        return [each + 1 for each in (returned if isinstance(returned, tuple) else (returned,))]

    due = block(*tensors)
    compiled = torch.compile(block, fullgraph=True, backend=fusebench.counting_backend(mode=mode))
    with torch.no_grad(), fusebench.count_calls() as calls:
        for _ in range(4):
            outputs = [each.clone() for each in compiled(*tensors)]
    torch.testing.assert_close(outputs, due)
    ((selection, count),) = calls.items()
    assert (selection.fallback, count) == (False, 4)
