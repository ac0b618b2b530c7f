"""The kernels that compile another phrasing of a split chain compute what the split chain computes, and torch traces them as one graph."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.config import find_project
from fusebench.registry import Collection
from fusebench.registry.calling import call_form
from fusebench.suites import load_suite

PROJECT = find_project(Path(__file__).parent)
PHRASINGS = {
    "qknorm_rope/compiled_whole@1": "edges_qknorm_rope",
    "qknorm_across_heads_rope/compiled_whole@1": "edges_qknorm_across_heads_rope",
    "rotary_embedding/compiled_whole@1": "edges_rotary_embedding",
}
TOKENS = 5


def test_every_phrasing_is_asked(collection: Collection) -> None:
    found = [kernel for kernel in collection.kernels.values() if kernel.compiled and not kernel.id.choice]
    compiled = {str(kernel.id) for kernel in found if kernel.id.name != "compiled"}
    assert compiled == set(PHRASINGS)


def calls(collection: Collection, kernel_id: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """A call per edge case of the kernel's op, of few tokens."""
    op = collection.op(kernel_id.partition("/")[0])
    found = []
    for case in load_suite(PHRASINGS[kernel_id], PROJECT, collection.ops).cases:
        params = op.shrink(op.parse_params(case.params), TOKENS)
        buffers = op.buffers(params, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0))
        found.append(call_form(op, op.arguments(params, buffers)))
    assert len(found) > 10
    return found


@pytest.mark.parametrize("kernel_id", PHRASINGS)
def test_a_phrasing_equals_the_split_chain_bit_for_bit(kernel_id: str, collection: Collection) -> None:
    split, phrased = collection.kernel(f"{kernel_id.partition('/')[0]}/split_torch@1"), collection.kernel(kernel_id)
    for args, kwargs in calls(collection, kernel_id):
        for one, other in zip(split(*args, **kwargs), inspect.unwrap(phrased.function)(*args, **kwargs), strict=True):
            assert torch.equal(one, other), kwargs


@pytest.mark.parametrize("choice", ["complex", "in_place", "max_autotune", "pairs_max_autotune"])
@pytest.mark.parametrize("kernel_id", PHRASINGS)
def test_the_other_phrasings_are_as_accurate(kernel_id: str, choice: str, collection: Collection) -> None:
    split = collection.kernel(f"{kernel_id.partition('/')[0]}/split_torch@1")
    phrased = inspect.unwrap(collection.kernel(kernel_id.replace("@", f"__{choice}@")).function)
    for args, kwargs in calls(collection, kernel_id)[::3]:
        expected = split(*args, **kwargs)
        found = phrased(*args, **kwargs)
        assert (found is None) == (choice == "in_place")
        for one, other in zip(expected, args if found is None else found, strict=False):
            torch.testing.assert_close(other, one, rtol=1e-6 if one.dtype == torch.float32 else 2**-7, atol=1e-6)


@pytest.mark.parametrize("choice", ["", "__in_place", "__max_autotune"])
@pytest.mark.parametrize("kernel_id", PHRASINGS)
def test_a_phrasing_is_one_graph(kernel_id: str, choice: str, collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = collection.kernel(kernel_id.replace("@", f"{choice}@"))
    compile_really, asked = torch.compile, []

    def compile_without_inductor(function: Any, *, fullgraph: bool, dynamic: bool, options: Any) -> Any:
        asked.append((fullgraph, dynamic, options))
        return compile_really(function, fullgraph=fullgraph, dynamic=dynamic, backend="eager")

    monkeypatch.setattr(torch, "compile", compile_without_inductor)
    args, kwargs = calls(collection, kernel_id)[0]
    expected = collection.kernel(f"{kernel_id.partition('/')[0]}/split_torch@1")(*args, **kwargs)
    found = kernel(*args, **kwargs)
    assert all(torch.equal(one, other) for one, other in zip(args if found is None else found, expected, strict=False))
    autotuned = {"max_autotune": True, "coordinate_descent_tuning": True}
    assert asked == [(True, False, autotuned if choice == "__max_autotune" else None)]
