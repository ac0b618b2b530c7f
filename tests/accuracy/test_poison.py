"""Poison: memory allocated inside a kernel shows until it is written, and compiled code stays compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fusebench.accuracy.poison import poisoned, unwritten

ALLOCATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda like: torch.empty(like.shape, dtype=like.dtype),
    "empty_like": torch.empty_like,
    "empty_strided": lambda like: torch.empty_strided(like.shape, like.stride(), dtype=like.dtype),
    "empty_permuted": lambda like: torch.empty_permuted(like.shape, (1, 0), dtype=like.dtype),
    "new_empty": lambda like: like.new_empty(like.shape),
    "new_empty_strided": lambda like: like.new_empty_strided(like.shape, like.stride()),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_fresh_memory_is_nan_and_counts_as_unwritten(allocator: str, dtype: torch.dtype) -> None:
    like = torch.zeros(3, 5, dtype=dtype)
    with poisoned([like], intercept=True):
        fresh = ALLOCATORS[allocator](like)
    assert bool(fresh.isnan().all())
    assert unwritten(fresh).tolist() == list(range(15))
    fresh[1, 2] = 0.0
    fresh[2, 0] = float("nan")  # a NaN that was written is not poison
    assert unwritten(fresh).tolist() == [index for index in range(15) if index not in (7, 10)]


def test_integer_and_bool_memory_gets_a_sentinel() -> None:
    with poisoned([], intercept=True):
        assert torch.empty(2, dtype=torch.int32).tolist() == [0x7FB17FB1] * 2
        assert torch.empty(2, dtype=torch.bool).tolist() == [True, True]
        assert torch.zeros(2).tolist() == [0.0, 0.0]


def test_without_interception_no_mode_is_active() -> None:
    """What is compiled as a whole must not see a dispatch mode at all."""
    with poisoned([torch.zeros(4)], intercept=False):
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    with poisoned([torch.zeros(4)], intercept=True):
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is not None


def test_compiled_code_runs_compiled_under_poison() -> None:
    """Under a dispatch mode that does not declare otherwise torch falls back to eager, and other code is checked than is timed."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        def compiled(*args: torch.Tensor) -> object:
            graphs.append("ran")
            return graph(*args)

        return compiled

    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    with poisoned([], intercept=True):
        function(torch.zeros(3))
    assert graphs == ["ran"]
