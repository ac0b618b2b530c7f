"""Device functions are written for every release of Triton that pyproject.toml allows; CI has the newest alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"


def decided_by_call(source: str) -> list[str]:
    """Constants in `@triton.jit` functions that a call of another device function gives: Triton 3.6 takes it for a tensor."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and any("jit" in ast.unparse(one) for one in function.decorator_list):
            found += [
                ast.unparse(node)
                for node in ast.walk(function)
                if isinstance(node, ast.AnnAssign)
                and ast.unparse(node.annotation) == "tl.constexpr"
                and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Name)
            ]
    return found


@pytest.mark.parametrize("file", sorted(KERNELS.rglob("*.py")), ids=lambda file: str(file.relative_to(KERNELS)))
def test_no_constant_comes_from_another_device_function(file: Path) -> None:
    assert decided_by_call(file.read_text()) == []


def test_such_a_constant_is_seen() -> None:
    function = "@triton.jit\ndef kernel(x, D: tl.constexpr):\n    ONCE: tl.constexpr = {}\n"
    assert decided_by_call(function.format("sums_once(x, D)")) == ["ONCE: tl.constexpr = sums_once(x, D)"]
    assert decided_by_call(function.format("D > 512")) == decided_by_call(function.format("tl.constexpr(D)")) == []
