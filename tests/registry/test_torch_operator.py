"""Fused kernels are torch operators: traceable, private to their root, and left alone in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusebench.registry import Collection, dispatch, load_collection

MakeRoot = Callable[..., Path]

TRITON = """
import torch
import triton
import triton.language as tl

from fusebench import kernel
from fusebench.registry.torch_operator import launchable

@triton.jit
def _scale(x, size, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)

@kernel("scale", "fast", version=1, role="fused", language="triton")
def fast(x, *, factor=2.0):
    launchable(_scale)[(triton.cdiv(x.numel(), 128),)](x, x.numel(), factor, BLOCK=128)
"""

OPAQUE = """
from fusebench import kernel

@kernel("scale", "fast", version=1, role="fused", language="cuda")
def fast(x, *, factor=2.0):
    x.mul_(factor)
"""


@pytest.fixture
def interpreted(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """The Triton kernel loaded while Triton's interpreter is on, so that it runs on the CPU."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    collection = load_collection([make_root(files={"fast.py": TRITON})], entry_points=False)
    assert not collection.problems, collection.problems
    return collection


def test_a_fused_kernel_passes_torchs_own_operator_check(interpreted: Collection) -> None:
    operator = interpreted.kernel("scale/fast@1").torch_op
    assert operator is not None
    torch.library.opcheck(operator, (torch.arange(300.0),), {"factor": 3.0})


def test_a_fused_kernel_overwrites_its_argument_and_only_as_far_as_it_reaches(interpreted: Collection) -> None:
    buffer = torch.ones(400)
    interpreted.kernel("scale/fast@1")(buffer[:300], factor=3.0)
    assert buffer[:300].eq(3).all()
    assert buffer[300:].eq(1).all()


def test_a_fused_kernel_is_traced_without_a_graph_break(interpreted: Collection) -> None:
    kernel = interpreted.kernel("scale/fast@1")

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        kernel(y, factor=3.0)
        return y * 2

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(300)).eq(12).all()


def test_outside_the_interpreter_a_triton_kernel_is_an_operator_with_the_ops_schema(
    make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    collection = load_collection([make_root(files={"fast.py": TRITON})], entry_points=False)
    assert not collection.problems, collection.problems
    operator = collection.kernel("scale/fast@1").torch_op
    assert operator is not None
    schema = operator._opoverload._schema  # type: ignore[attr-defined]
    assert [(argument.name, argument.alias_info is not None) for argument in schema.arguments] == [("x", True), ("factor", False)]
    assert schema.name.startswith("fusebench_root_")


def test_operators_of_two_roots_do_not_collide(make_root: MakeRoot) -> None:
    head = load_collection([make_root("head", {"fast.py": OPAQUE})], entry_points=False)
    base = load_collection([make_root("base", {"fast.py": OPAQUE.replace("mul_(factor)", "add_(factor)")})], entry_points=False)
    results = []
    for collection in (head, base):
        operator = collection.kernel("scale/fast@1").torch_op
        assert operator is not None
        x = torch.ones(2)
        operator(x, factor=5.0)
        results.append(x[0].item())
    assert results == [5.0, 6.0]


def test_kernels_that_torch_can_trace_itself_get_no_operator(make_root: MakeRoot) -> None:
    collection = load_collection([make_root(files={"fast.py": OPAQUE.replace('"cuda"', '"torch"')})], entry_points=False)
    assert all(kernel.torch_op is None for kernel in collection.kernels.values())


def test_a_schema_that_torch_refuses_is_a_problem_of_that_kernel(make_root: MakeRoot) -> None:
    op = (make_root("spare") / "scale" / "op.py").read_text().replace("float factor=2.0", "flaot factor=2.0")
    collection = load_collection([make_root(files={"op.py": op, "fast.py": OPAQUE})], entry_points=False)
    assert list(collection.kernels) == ["scale/split@1"]
    (problem,) = collection.problems
    assert problem.file.name == "fast.py"
    assert "scale/fast@1 cannot become a torch operator" in problem.message


def test_dispatch_calls_the_function_itself_in_eager_mode(make_root: MakeRoot) -> None:
    collection = load_collection([make_root(files={"fast.py": OPAQUE})], entry_points=False)
    kernel = collection.kernel("scale/fast@1")

    def unexpected(*args: object, **kwargs: object) -> None:
        raise AssertionError("eager calls must not pay for operator dispatch")

    kernel.torch_op = unexpected
    x = torch.ones(2)
    kernel(x, factor=3.0)
    assert x.tolist() == [3.0, 3.0]
    assert dispatch("scale", collection=collection).explain(x).fallback, "CUDA C++ does not run on CPU tensors"
