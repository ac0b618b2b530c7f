"""The measurement of a case in a worker's process: which arms, with which timer, and what machine code they launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....device.cpu_process import settings
from ....errors import TimerError
from ..protocol import CalibrationTask, CompareTask, ConfirmTask, Measured, MeasureTask, PairsTask, Progress, WorkerSetup
from .digests import digested, digests, same_codes
from .revisions import Revisions

if TYPE_CHECKING:
    import torch

    from ....timing.arm import Arm


class Measurer:
    """Measures what tasks name."""

    def __init__(
        self,
        setup: WorkerSetup,
        device: torch.device,
        revisions: Revisions,
        *,
        holds_memory: bool,
        on_progress: Callable[[Progress], None],
        on_call: Callable[[str], None],
    ) -> None:
        """
        Args:
            holds_memory: whether the process keeps the memory that it frees, as `device.cpu_process` has it.
            on_call: told the name of an arm before each timed call.
        """
        self._setup, self._device, self._revisions = setup, device, revisions
        self._holds_memory, self._on_progress, self._on_call = holds_memory, on_progress, on_call

    def measure(self, task: MeasureTask) -> Measured:
        """The times of the task's arms, and all that is known of them.

        Raises:
            TimerError: the timer cannot measure here, or this process would measure in another way than the run's other ones.
        """
        from ....accuracy.timed_outputs import TimedOutputs
        from ....device import settle
        from ....registry.launches.machine_code import combined
        from ....timing.measure import measure_case
        from ....timing.placement import STREAM, memory_bytes, minimum_bytes
        from ....timing.preparation import last_level_cache_bytes
        from ....timing.timers.select import select_timer
        from ....timing.yardstick import yardstick_text

        self._require_settings()
        op, params = self._revisions.case(task.case)
        timer, fallback = select_timer(self._device.type, task.timer)
        warm_up: dict[str, Any] = {}
        specs = self._revisions.arms(task, op)
        code: dict[str, str] = {}
        same_code: dict[str, bool | None] = {}

        def identical(arms: Sequence[Arm]) -> list[str]:
            known_code = digests(digested(task), specs, arms)
            code.update({name: known for name, found in known_code.items() if (known := combined(found)) is not None})
            if not isinstance(task, CompareTask):
                return []
            same_code.update(same_codes(task, known_code))
            return [name for name, same in same_code.items() if same and name not in task.sampled] if task.skip_identical else []

        timings = measure_case(
            task.case.key,
            op,
            params,
            specs,
            device=self._device,
            plan=task.plan,
            timer=timer,
            seed=task.seed,
            deadline=None if task.seconds is None else time.monotonic() + task.seconds,
            settle=lambda work: warm_up.update(settle(self._device.type, self._setup.gpu_uuid, work)),
            on_arm=lambda name: self._on_progress(Progress(text="warm up", kernel=name)),
            on_call=self._on_call,
            on_replicate=lambda done, most: self._on_progress(Progress(text="measure", done=done, total=most)),
            pairs=task.pairs if isinstance(task, PairsTask) else (),
            looks=task.looks if isinstance(task, CompareTask | CalibrationTask) else None,
            lengths=task.lengths if isinstance(task, ConfirmTask | CalibrationTask) else None,
            decided_before=identical,
            outputs=TimedOutputs(op, split=self._revisions.split_reference(op), others=self._revisions.beside),
        )
        cache = last_level_cache_bytes(self._device)
        return Measured.of(
            timings,
            timer=timer.name,
            timer_fallback=fallback,
            warm_up=warm_up,
            minimum_bytes={spec.name: minimum_bytes(spec, op, params) for spec in specs},
            memory_bytes={spec.name: memory_bytes(spec, op, params, cache) for spec in specs},
            stream_shape=yardstick_text(self._device.type) if any(spec.name == STREAM for spec in specs) else "",
            code=code,
            same_code=same_code,
        )

    def _require_settings(self) -> None:
        """Raise TimerError where this process would measure on a CPU in another way than the run's other ones."""
        expected = self._setup.cpu_process
        if expected and (found := settings(held=self._holds_memory)) != expected:
            raise TimerError(f"this process would measure with {found}; expected {expected}, as in every process of the run")
