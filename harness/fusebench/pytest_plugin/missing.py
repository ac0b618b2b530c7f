"""The fixture `gpu_benchmark` where pytest-benchmark is missing: it says what to install."""

from __future__ import annotations

from typing import NoReturn

import pytest

from . import INSTALL


@pytest.fixture
def gpu_benchmark() -> NoReturn:
    """Fail with what to install."""
    pytest.fail(f"gpu_benchmark: {INSTALL}", pytrace=False)
