"""norm_scale_shift_gate_select01's op and kernels, and small cases of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusebench.registry import Collection, Op

SMALL = {"tokens": 3, "hidden": 96}


@pytest.fixture(scope="session")
def op(collection: Collection) -> Op:
    return collection.op("norm_scale_shift_gate_select01")


@pytest.fixture(scope="session")
def parse(op: Op) -> Any:
    """`parse(**changes)`: Params of a small case with these changes."""
    return lambda **changes: op.parse_params(SMALL | changes)


@pytest.fixture(scope="session")
def bench(bench_of: Callable[[str], Any]) -> Any:
    """The op's kernels on the device where Triton runs."""
    return bench_of("norm_scale_shift_gate_select01")
