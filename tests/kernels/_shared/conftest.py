"""The files of kernels/_shared as the loaded kernels see them, and layouts to try them on."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

from fusebench.registry import Collection


@pytest.fixture(scope="session")
def shared(collection: Collection) -> Any:
    """`shared("modulation")`: a module of kernels/_shared."""
    root = type(collection.op("norm_scale_shift")).__module__.partition(".")[0]

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"{root}._shared.{name}")

    return load
