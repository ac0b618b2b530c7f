"""The GPU's memory in a worker: what is returned after each measurement, and whether a kernel that failed keeps some."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

KEPT_BYTES = 2**28
"""Memory of the GPU that may stay in use after a failure before the process is replaced: workspaces of libraries are smaller."""


class GpuMemory:
    """The memory that torch holds on the worker's GPU; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._frozen = False

    def allocated(self) -> int:
        """Bytes that torch has handed out on the GPU."""
        if self._device.type != "cuda":
            return 0
        import torch

        return torch.cuda.memory_allocated(self._device)

    def is_broken(self, allocated: int) -> bool:
        """Whether the GPU answers no more in this process, or a kernel that failed keeps memory.

        Args:
            allocated: bytes that were in use before the task.
        """
        if self._device.type != "cuda":
            return False
        import torch

        try:
            torch.cuda.synchronize(self._device)
            self.give_back()
            answers = int(torch.arange(64, device=self._device).add_(1).sum()) == 64 * 65 // 2
        except Exception:  # noqa: BLE001  an error that stays, such as an illegal access
            return True
        return not answers or self.allocated() > allocated + KEPT_BYTES

    def give_back(self) -> None:
        """Return memory that another worker may need: five fresh processes measure the same case in turn on one device."""
        if self._device.type == "cuda":
            import torch

            gc.collect()
            if not self._frozen:
                gc.freeze()  # modules, for the most part: to walk or count them after every measurement takes 0.1 to 0.7 s each time
                self._frozen = True
            torch.cuda.empty_cache()
