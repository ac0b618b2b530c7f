"""The accuracy gate in a worker's process: of one kernel on one case, or of many kernels before the first case is measured."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....registry import Kernel
from ....schema import Accuracy, Case, Role
from ..protocol import AheadTask, Checked, CheckedAhead, CheckTask
from .cause import is_device_fault
from .gpu_memory import GpuMemory
from .revisions import Revisions
from .tuning import keep_tuning_in_memory

if TYPE_CHECKING:
    import torch

    from ....accuracy.repetition import Repetition
    from ....accuracy.shared_draws import DrawStore


class Checker:
    """Checks kernels; consecutive checks of a case share its draws."""

    def __init__(
        self,
        device: torch.device,
        revisions: Revisions,
        memory: GpuMemory,
        on_draw: Callable[[int, int, str], None],
        on_call: Callable[[str], None],
    ) -> None:
        """
        Args:
            on_draw: told how many of how many draws, or of an `AheadTask` kernels, are done, and the kernel's name.
            on_call: told the name of each kernel of an `AheadTask` before it is called.
        """
        self._device, self._revisions, self._memory = device, revisions, memory
        self._on_draw, self._on_call = on_draw, on_call
        self._draws: DrawStore | None = None
        """Draws that the checks of a case's kernels share; None where there are none."""
        self._repetition: Repetition | None = None
        """Repeated calls of the kernels that are checked, once each; made with the first check."""

    def forget_draws(self) -> None:
        """Share no draws with earlier checks: another task needs their memory, or a kernel that failed may have written into them."""
        self._draws = None

    def check(self, task: CheckTask, *, repeated: bool = True) -> Checked:
        """The check on the draws that the case's kernels share; without them where there is no memory for both.

        Args:
            repeated: whether the kernel is called repeatedly, where that is due.
        """
        import torch

        from ....accuracy.shared_draws import DrawStore

        self._draws = self._draws or DrawStore()
        try:
            return Checked(accuracy=self._judged(task, repeated))
        except torch.OutOfMemoryError:
            if self._draws.nbytes == 0:
                raise
        self._draws = None
        self._memory.give_back()
        return Checked(accuracy=self._judged(task, repeated))

    def _judged(self, task: CheckTask, repeated: bool) -> Accuracy:
        from ....accuracy.gate import check_kernel
        from ....accuracy.repetition import Repetition

        self._repetition = self._repetition or Repetition()
        kernel, revision = self._revisions.kernel(task.kernel)
        op, params = self._revisions.case(task.case)
        return check_kernel(
            self._revisions.judged(kernel, op),
            op,
            params,
            split=self._revisions.split_reference(op),
            others=revision.kernels,
            device=self._device,
            seed=task.seed,
            rows=task.rows,
            store=self._draws,
            repetition=self._repetition if repeated else None,
            on_draw=lambda done, total: self._on_draw(done, total, task.kernel),
        )

    def check_ahead(self, task: AheadTask) -> CheckedAhead:
        """Check each kernel, or call it where there is no memory for more; errors are left to its check alone.

        What a compiler tuned by timing is called only: such a choice is not kept, so another check follows.
        """
        accuracy: dict[str, Accuracy] = {}
        seconds: dict[str, float] = {}
        for number, name in enumerate(task.kernels):
            self._on_draw(number, len(task.kernels), name)
            self._on_call(name)
            kernel, _ = self._revisions.kernel(name)
            compiled = kernel.role is Role.COMPILED
            began, tunings = time.monotonic(), keep_tuning_in_memory(inductor=compiled)
            try:
                if compiled or not task.checked:
                    self._call_once(task.case, kernel)
                if task.checked and keep_tuning_in_memory(inductor=compiled) == tunings:
                    check = CheckTask(case=task.case, kernel=name, seed=task.seed)
                    checked = self.check(check, repeated=name not in task.repeated_elsewhere)
                    if keep_tuning_in_memory(inductor=compiled) == tunings:
                        accuracy[name] = checked.accuracy
            except Exception as error:
                if is_device_fault(error):
                    raise
                self._draws = None
            seconds[name] = time.monotonic() - began
        self._draws = None
        self._memory.give_back()
        return CheckedAhead(accuracy=accuracy, seconds=seconds)

    def _call_once(self, case: Case, kernel: Kernel) -> None:
        """Call a kernel as its check will, on inputs of the same layout."""
        import torch

        from ....accuracy.execution import place_at_random
        from ....registry.calling import call_form

        op, params = self._revisions.case(case)
        generator = torch.Generator(device=self._device).manual_seed(0)
        buffers = op.buffers(params, device=self._device, generator=generator)
        whole = op if kernel.part is None else kernel.part.op_of(op)
        arguments = whole.arguments(params, place_at_random(buffers, self._device, random.Random(0)).buffers)
        whole.apply(kernel, *call_form(whole, arguments))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
