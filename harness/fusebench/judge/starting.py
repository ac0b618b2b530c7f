"""Processes that are started before they are needed, since importing torch and a GPU's start take seconds; imports no torch itself."""

from __future__ import annotations

from ..schema.evaluation import Stage
from .channel.tasks import EvaluateTask, Expect
from .process import KernelProcess


class Starter:
    """The processes of the next candidates, one of each kind, and that of the baseline, until somebody takes them."""

    def __init__(self) -> None:
        self._candidates: dict[bool, KernelProcess] = {}
        """By whether calls will be timed."""
        self._baseline: KernelProcess | None = None

    def candidate_ahead(self, task: EvaluateTask | Expect) -> None:
        """Start the process for a candidate of this kind of task, unless one waits."""
        if _timed(task) not in self._candidates:
            self._candidates[_timed(task)] = _candidate(task)

    def baseline_ahead(self, task: EvaluateTask | Expect) -> None:
        """Start the baseline's process, if the stage times anything."""
        if self._baseline is None and _timed(task):
            self._baseline = _baseline(task)

    def candidate(self, task: EvaluateTask) -> KernelProcess:
        """A process that no candidate has used."""
        process = self._candidates.pop(_timed(task), None)
        if process is not None and process.alive and process.settings == (task.roots, task.device, _timed(task), task.memory_bytes):
            return process
        if process is not None:
            process.close()
        return _candidate(task)

    def baseline(self, task: EvaluateTask) -> KernelProcess:
        """A process for the project's own kernels."""
        process, self._baseline = self._baseline, None
        if process is not None and process.alive and process.settings == (task.roots, task.device, True, None):
            return process
        if process is not None:
            process.close()
        return _baseline(task)

    def close(self) -> None:
        """End the processes that nobody took."""
        for process in (*self._candidates.values(), self._baseline):
            if process is not None:
                process.close()
        self._candidates.clear()
        self._baseline = None


def _timed(task: EvaluateTask | Expect) -> bool:
    return task.stage is not Stage.CHECK


def _candidate(task: EvaluateTask | Expect) -> KernelProcess:
    return KernelProcess(roots=task.roots, device=task.device, confined=True, timed=_timed(task), memory_bytes=task.memory_bytes)


def _baseline(task: EvaluateTask | Expect) -> KernelProcess:
    return KernelProcess(roots=task.roots, device=task.device, confined=False, timed=True)
