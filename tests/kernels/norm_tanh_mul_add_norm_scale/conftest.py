"""norm_tanh_mul_add_norm_scale's op, and small cases of it."""

from __future__ import annotations

from typing import Any

import pytest

from fusebench.registry import Collection, Op

SMALL = {"tokens": 3, "hidden": 96}


@pytest.fixture(scope="session")
def op(collection: Collection) -> Op:
    return collection.op("norm_tanh_mul_add_norm_scale")


@pytest.fixture(scope="session")
def parse(op: Op) -> Any:
    """`parse(**changes)`: Params of a small case with these changes."""
    return lambda **changes: op.parse_params(SMALL | changes)
