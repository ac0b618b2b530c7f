"""Both select01 ops, which nearly all tests here hold for alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusebench.registry import Collection, Op

NAMES = ("norm_scale_shift_gate_select01", "residual_norm_scale_shift_gate_select01")
SMALL = {"tokens": 3, "hidden": 96}


@pytest.fixture(scope="session", params=NAMES)
def op(request: pytest.FixtureRequest, collection: Collection) -> Op:
    return collection.op(request.param)


@pytest.fixture(scope="session")
def parse(op: Op) -> Any:
    """`parse(**changes)`: Params of a small case with these changes."""
    return lambda **changes: op.parse_params(SMALL | changes)


@pytest.fixture(scope="session")
def bench(op: Op, bench_of: Callable[[str], Any]) -> Any:
    """The op's kernels on the device where Triton runs."""
    return bench_of(op.name)
