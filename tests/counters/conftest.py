"""The factory of captures, for the tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def counted() -> ModuleType:
    """The module tests/synthetic_counters.py: captures of an H200, and launches with planted figures."""
    spec = importlib.util.spec_from_file_location("fusebench_synthetic_counters", Path(__file__).parents[1] / "synthetic_counters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
