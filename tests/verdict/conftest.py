"""What the tests of this folder share: the factory of synthetic runs and the simulation of comparisons."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where msgspec looks for the types that a string annotation names
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module tests/synthetic.py: runs and samples that no device made."""
    return load("fusebench_synthetic", Path(__file__).parents[1] / "synthetic.py")


@pytest.fixture(scope="session")
def simulate() -> ModuleType:
    """The module simulate.py: comparisons under noise like a GPU's."""
    return load("fusebench_simulate", Path(__file__).with_name("simulate.py"))


@pytest.fixture(scope="session")
def characteristics() -> ModuleType:
    """The module operating_characteristics.py: what writes the tables of docs/statistics.md."""
    return load("fusebench_characteristics", Path(__file__).with_name("operating_characteristics.py"))


@pytest.fixture(scope="session")
def history_characteristics() -> ModuleType:
    """The module history_characteristics.py: what writes the tables of docs/history.md."""
    return load("fusebench_history_characteristics", Path(__file__).with_name("history_characteristics.py"))
