"""The factories of synthetic runs and of captured counters, for the tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module tests/synthetic.py: runs and samples that no device made."""
    return _beside_the_folders("synthetic")


@pytest.fixture(scope="session")
def counted() -> ModuleType:
    """The module tests/synthetic_counters.py: captures of an H200, and launches with planted figures."""
    return _beside_the_folders("synthetic_counters")


def _beside_the_folders(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fusebench_{name}", Path(__file__).parents[1] / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
