"""Dispatched calls inside torch.compile: no graph break, the eager call's results, true explanations, and counts per kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fusebench
from fusebench.registry import Collection, Dispatcher, Selection, dispatch, load_collection

MakeRoot = Callable[..., Path]

KERNELS = """
from fusebench import kernel

@kernel("scale", "fast", version=1, role="compiled", language="torch")
def fast(x, *, factor=2.0):
    x.mul_(factor)

@fast.supports
def _(params):
    return params.size % 4 == 0 or "no multiple of 4"

@kernel("scale", "foreign", version=1, role="peer", language="torch")
def foreign(x, *, factor=2.0):
    return (x.new_tensor((x.numpy() * factor).tolist()),)
"""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture
def collection(make_root: MakeRoot) -> Collection:
    loaded = load_collection([make_root(files={"fast.py": KERNELS})], entry_points=False)
    assert not loaded.problems
    return loaded


def block(scale: Dispatcher) -> Callable[[torch.Tensor], Any]:
    def run(x: torch.Tensor) -> Any:
        wide = x + 1
        view = wide[1:-1]
        (same,) = scale(view, factor=3.0)
        scale(x)
        return wide, same * 2, view.sum()

    return run


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("prefer", ["compiled", "fused", "peer"])
def test_views_are_overwritten_in_one_graph_as_in_the_eager_call(
    collection: Collection, prefer: str, backend: str, dynamic: bool | None
) -> None:
    run = block(dispatch("scale", prefer=prefer, collection=collection))
    compiled = torch.compile(run, fullgraph=True, backend=backend, dynamic=dynamic)
    for size in (10, 11, 14):
        mine, theirs = torch.arange(float(size)), torch.arange(float(size))
        for got, due in zip(compiled(mine), run(theirs), strict=True):
            assert torch.equal(got, due)
        assert torch.equal(mine, theirs)


def test_what_was_traced_is_explained_and_its_fallbacks_are_listed(collection: Collection) -> None:
    scale = dispatch("scale", prefer="compiled", collection=collection)
    compiled = torch.compile(lambda x: scale(x * 2), fullgraph=True, backend="aot_eager")
    compiled(torch.ones(8))
    assert scale.fallbacks == []
    compiled(torch.ones(6))
    compiled(torch.ones(10))
    assert {fallback.reason for fallback in scale.fallbacks} == {"scale/fast@1: no multiple of 4"}
    assert scale.explain(torch.ones(6)) in scale.fallbacks


def test_a_kernel_is_chosen_anew_where_a_guard_of_its_conditions_fails(collection: Collection) -> None:
    scale = dispatch("scale", prefer="compiled", collection=collection)
    compiled = torch.compile(lambda x: scale(x * 2), fullgraph=True, backend=fusebench.counting_backend("aot_eager"), dynamic=True)
    with fusebench.count_calls() as calls:
        for size in (8, 12, 6, 10, 16):
            compiled(torch.ones(size))
    assert by_kernel(calls) == {"scale/fast@1": 3, "scale/split@1": 2}


def by_kernel(calls: Counter[Selection]) -> dict[str, int]:
    return dict(sum((Counter({selection.kernel: count}) for selection, count in calls.items()), Counter()))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_every_run_of_a_graph_counts_its_calls(collection: Collection, backend: str) -> None:
    scale = dispatch("scale", prefer="compiled", collection=collection)
    run = block(scale)
    compiled = torch.compile(run, fullgraph=True, backend=fusebench.counting_backend(backend))
    compiled(torch.ones(8))
    with fusebench.count_calls() as calls:
        for _ in range(3):
            compiled(torch.ones(8))
        scale(torch.ones(4))
        with fusebench.count_calls() as inner:
            run(torch.ones(6))
    assert by_kernel(calls) == {"scale/fast@1": 4, "scale/split@1": 3}, "3 x (8 and 6 of 8 elements), and 4 elements by themselves"
    assert by_kernel(inner) == {"scale/fast@1": 1, "scale/split@1": 1}
    assert {selection.reason for selection in calls} == {"", "scale/fast@1: no multiple of 4"}


def test_no_calls_are_counted_of_a_graph_that_another_backend_compiled(collection: Collection) -> None:
    compiled = torch.compile(block(dispatch("scale", collection=collection)), fullgraph=True, backend="eager")
    with fusebench.count_calls() as calls:
        compiled(torch.ones(8))
    assert not calls


def test_two_dispatchers_of_one_op_keep_their_own_fallbacks(collection: Collection) -> None:
    one, other = (dispatch("scale", collection=collection) for _ in range(2))
    torch.compile(lambda x: one(x * 2), fullgraph=True, backend="aot_eager")(torch.ones(4))
    assert (len(one.fallbacks), len(other.fallbacks)) == (1, 0)


def test_the_name_of_an_operator_says_what_code_chooses(make_root: MakeRoot) -> None:
    """torch keeps traced graphs on disk by the operators' names."""

    def name(folder: str, source: str) -> str:
        scale = dispatch("scale", collection=load_collection([make_root(folder, {"fast.py": source})], entry_points=False))
        torch.compile(lambda x: scale(x * 2), backend=noting, fullgraph=True)(torch.ones(4))
        return names[-1]

    names: list[str] = []

    def noting(graph: Any, inputs: Any) -> Any:
        names.append(next(str(node.target) for node in graph.graph.nodes if "fusebench" in str(node.target)))
        return graph.forward

    one, other = name("one", KERNELS), name("other", KERNELS.replace("% 4", "% 8"))
    assert one.startswith("fusebench_dispatch.scale__fused_")
    assert one != other
