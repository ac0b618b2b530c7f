"""The factory of synthetic runs, for the tests of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module tests/synthetic.py: runs and samples that no device made."""
    spec = importlib.util.spec_from_file_location("fusebench_synthetic", Path(__file__).parents[1] / "synthetic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
