"""rotary_embedding's op and kernels, and small cases of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from fusebench.registry import Collection, Op

SMALL = {"tokens": 3, "heads": 3, "head_dim": 128, "layout": "interleaved"}


@pytest.fixture(scope="session")
def op(collection: Collection) -> Op:
    return collection.op("rotary_embedding")


@pytest.fixture(scope="session")
def parse(op: Op) -> Any:
    """`parse(**changes)`: Params of a small case with these changes."""
    return lambda **changes: op.parse_params(SMALL | changes)


@pytest.fixture(scope="session")
def module(op: Op) -> Any:
    """`module("_tiles")`: a file of the op's folder, as the loaded kernels see it."""

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"{type(op).__module__.rpartition('.')[0]}.{name}")

    return load


@pytest.fixture(scope="session")
def bench(bench_of: Callable[[str], Any]) -> Any:
    """The op's kernels on the device where Triton runs."""
    return bench_of("rotary_embedding")
