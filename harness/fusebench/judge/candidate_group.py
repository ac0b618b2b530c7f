"""The processes of one candidate: the one that is judged, and helpers that compile ahead for it.  Imports no torch.

All are confined alike, start fresh for each candidate, and share one folder of compiled code, which no other candidate's process may open.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..device.readings import GpuUnavailableError
from ..schema.evaluation import Stage
from .channel.protocol import EvaluateTask
from .confinement.process_tree import remove_folder
from .process import KernelProcess, default_memory

if TYPE_CHECKING:
    from ..device.select import Device

MOST_HELPERS = 3
"""Helpers of one candidate: `check` has some seven specialisations to compile, of which the judged process compiles the first."""
CORES_PER_PROCESS = 4
"""Cores for each helper, and for the judged process with the judge: the next candidate's processes start meanwhile."""
SPARE_GPU_BYTES, HELPER_GPU_BYTES = 8 * 2**30, 2 * 2**30
"""GPU memory that must stay free beside the helpers, and that of one: its context takes 0.5 GiB."""
HELPERS_SHARE = 0.25
"""Host memory of all helpers, as a share of what the judged process may take."""
LEAST_HELPER_BYTES = 4 * 2**30
"""Host memory that a helper needs: torch and a GPU's context take 2 GiB."""


def helpers_for(device: Device, stage: Stage, memory_bytes: int | None) -> int:
    """Helpers that the machine has room for.  None where calls are timed, and none on a CPU, which interprets Triton kernels.

    Args:
        memory_bytes: host memory that the judged process may take; None for the default.
    """
    if stage is not Stage.CHECK or device.kind == "cpu" or device.memory_bytes is None:
        return 0
    from ..runner.workers.checking import usable_cores

    most = min(
        MOST_HELPERS, usable_cores() // CORES_PER_PROCESS - 1, int(HELPERS_SHARE * (memory_bytes or default_memory())) // LEAST_HELPER_BYTES
    )
    if most <= 0:
        return 0
    from ..device.nvml import open_monitor

    try:
        used = open_monitor().read(device.uuid).memory_used_bytes
    except GpuUnavailableError:
        return 0
    return 0 if used is None else max(0, min(most, (device.memory_bytes - used - SPARE_GPU_BYTES) // HELPER_GPU_BYTES))


class CandidateGroup:
    """Fresh processes for one candidate, which start together."""

    def __init__(self, task: EvaluateTask) -> None:
        """Start them; `main` first."""
        timed = task.stage is not Stage.CHECK
        self._settings = _settings(task)
        self.cache = Path(tempfile.mkdtemp(prefix="fusebench-eval-")) if task.helpers else None

        def started(memory_bytes: int | None) -> KernelProcess:
            return KernelProcess(
                roots=task.roots, device=task.device, confined=True, timed=timed, memory_bytes=memory_bytes, cache=self.cache
            )

        self.main = started(task.memory_bytes)
        share = HELPERS_SHARE * (task.memory_bytes or default_memory()) / max(1, task.helpers)
        self.helpers = tuple(started(int(share)) for _ in range(task.helpers))

    def fits(self, task: EvaluateTask) -> bool:
        """Whether the candidate of `task` may have these processes."""
        return self._settings == _settings(task)

    def close(self) -> None:
        """End every process, and remove their folders."""
        kill_all((self.main, *self.helpers))
        for process in (self.main, *self.helpers):
            process.close()
        if self.cache is not None:
            remove_folder(self.cache)


def _settings(task: EvaluateTask) -> tuple[object, ...]:
    return task.roots, task.device, task.stage is not Stage.CHECK, task.memory_bytes, task.helpers


def kill_all(processes: Iterable[KernelProcess]) -> None:
    """Kill processes at the same time: a GPU's driver takes tenths of a second to end each."""
    killers = [threading.Thread(target=process.kill, name="kill", daemon=True) for process in processes]
    for killer in killers:
        killer.start()
    for killer in killers:
        killer.join()
