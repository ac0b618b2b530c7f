"""qknorm_across_heads_rope's op and kernels, and small cases of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from fusebench.registry import Collection, Op

SMALL = {"tokens": 3, "heads": 3, "head_dim": 128}


@pytest.fixture(scope="session")
def op(collection: Collection) -> Op:
    return collection.op("qknorm_across_heads_rope")


@pytest.fixture(scope="session")
def parse(op: Op) -> Any:
    """`parse(**changes)`: Params of a small case with these changes."""
    return lambda **changes: op.parse_params(SMALL | changes)


@pytest.fixture(scope="session")
def module(op: Op) -> Any:
    """`module("fused_cuda")`: a file of the op's folder, as the loaded kernels see it."""
    return lambda name: importlib.import_module(f"{type(op).__module__.rpartition('.')[0]}.{name}")


@pytest.fixture(scope="session")
def bench(bench_of: Callable[[str], Any]) -> Any:
    """The op's kernels on the device where Triton runs."""
    return bench_of("qknorm_across_heads_rope")
