"""Types and sources of the tests of the pytest plugin."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1]
PLAIN = """
from fusebench import kernel

@kernel("scale", "plain", version=1, role="fused", language="torch")
def plain(x, *, factor=2.0):
    x.mul_(factor)
"""

Session = Callable[..., subprocess.CompletedProcess[str]]
