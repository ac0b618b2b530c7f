"""The timer on CUDA's activity records, as far as a machine without a GPU shows it."""

from __future__ import annotations

import subprocess
import sys

RECORD = """
import sys, warnings, torch
from fusebench.timing.arm import Arm
from fusebench.timing.timers.cupti import CuptiTimer
torch.cuda.synchronize = lambda *device: None
warnings.simplefilter("ignore")  # torch says that there is no CUDA
for times in range(2):
    calls = []
    events = CuptiTimer().record([Arm("one", lambda: calls.append(1), lambda: None)] * 3, lambda arm: calls.append(0))
    assert calls == [0, 1] * 3, calls
    assert len([event for event in events if event.name().startswith("fusebench")]) == 7, [event.name() for event in events]
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"sympy", "mpmath"}))
"""


def test_a_profile_has_a_range_for_each_call_and_imports_no_compiler() -> None:
    """`torch.profiler.profile` imports Inductor's settings, and with these SymPy: seconds in each measuring process."""
    done = subprocess.run([sys.executable, "-c", RECORD], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "", f"imported: {done.stdout}"
