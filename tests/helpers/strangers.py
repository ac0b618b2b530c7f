"""A process of someone else on a GPU, which is none of those that a test runs in."""

from __future__ import annotations

from fusebench.device import GpuProcess

NOBODY = 2**22 + 4242
"""No process has it on Linux, where they end at 2^22: a test may run in one of any other number."""
STRANGER = GpuProcess(pid=NOBODY, name="train", used_bytes=2**30, kind="compute")
