"""The judge: draws, references, comparison and clocks for one candidate after another.  It never imports a candidate."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from ..errors import UsageError
from ..registry import Collection, Kernel, load_collection
from ..registry.kernel import reason_not_runnable
from ..schema import KernelId
from ..schema.evaluation import Evaluation, EvaluationStatus, IsolationMeasure, Stage
from .candidate.loading import trusted_collection
from .channel.protocol import Load, Loaded
from .channel.tasks import EvaluateTask, Step
from .evaluating import Evaluating
from .failures import CandidateError
from .loaded_candidate import LOAD_S
from .patience import Patience
from .phases import END, Phases
from .process import KernelProcess
from .starting import Starter


class Judge:
    """Judges candidates on one device."""

    def __init__(self, device: str, protection: IsolationMeasure, starter: Starter | None = None) -> None:
        """
        Args:
            protection: what keeps candidates from the memory of this process.
            starter: holds processes that were started before torch was imported here.
        """
        self.protection = protection
        self._starter = starter or Starter()
        self._device = torch.device(device)
        self._interpret = self._device.type == "cpu"
        self._collections: dict[Any, Collection] = {}
        self._baselines: dict[Any, tuple[KernelProcess, Kernel]] = {}
        if self._interpret:
            from ..accuracy.interpreter import install_exact_casts, install_remembered_builtins

            install_exact_casts()
            install_remembered_builtins()
            torch.set_num_threads(1)

    def close(self) -> None:
        """End every process."""
        self._starter.close()
        for process, _ in self._baselines.values():
            process.close()
        self._baselines.clear()

    def evaluate(self, task: EvaluateTask, report: Callable[[Step], None]) -> Evaluation:
        """Judge the candidate of `task`.

        Raises:
            UsageError, KernelDeclarationError: the project's own op or kernels cannot be loaded.
        """
        began = time.monotonic()
        source = Path(task.file).read_bytes()
        process = self._starter.candidate(task)
        if task.keep and task.stage is Stage.CHECK:  # nothing is timed that the start of the next one's process could disturb
            self._starter.candidate_ahead(task)
        phases = Phases()
        try:
            evaluating = Evaluating(self, task, process, source, report=report, deadline=began + task.seconds)
            phases, found = evaluating.phases, evaluating.run()
        finally:
            with phases.timed(END):
                process.close()
        if task.keep:
            self._start_ahead(task, found)
        return msgspec.structs.replace(
            found, spent_s=round(time.monotonic() - began, 3), phases_s=phases.seconds(), start_s=process.start_s
        )

    def _start_ahead(self, task: EvaluateTask, found: Evaluation) -> None:
        """Start what the next evaluation will probably need: one like this, and a timed one of the candidate that has just passed."""
        self._starter.candidate_ahead(task)
        if task.stage is Stage.CHECK and found.status is EvaluationStatus.PASSED:
            timed = msgspec.structs.replace(task, stage=Stage.QUICK)
            self._starter.candidate_ahead(timed)
            known = self._baselines.get((task.roots, task.op))
            if known is None or not known[0].alive:
                self._starter.baseline_ahead(timed)

    def project(self, task: EvaluateTask, *, all_kernels: bool = False) -> Collection:
        """The project's op with its split chain, or with all its kernels."""
        key = (task.roots, task.op, all_kernels)
        if key not in self._collections:
            roots = tuple(Path(root) for root in task.roots)
            if all_kernels:
                found = trusted_collection(roots, task.op)
            else:
                op = load_collection(roots, kernels=False, entry_points=False).op(task.op)
                wanted = KernelId.parse(f"{task.op}/{op.split_reference}")
                found = load_collection(roots, entry_points=False, only={task.op}, kernel=wanted, operators=False)
            self._collections[key] = found
        return self._collections[key]

    def baseline_process(self, task: EvaluateTask) -> tuple[KernelProcess, Kernel]:
        """The process that times the op's baseline, and that kernel."""
        key = (task.roots, task.op)
        known = self._baselines.get(key)
        if known is not None and known[0].alive:
            return known
        baseline = self._baseline_kernel(task)
        process = self._starter.baseline(task)
        load = Load(token="", op=task.op, kernel=str(baseline.id))
        try:
            process.ask(load, Loaded, doing="the start of the split chain's process", patience=Patience(time.monotonic() + LOAD_S))
        except CandidateError as error:
            process.close()
            raise CandidateError(EvaluationStatus.UNFIT, f"the project's own split chain failed: {error.reason}") from error
        self._baselines[key] = process, baseline
        return self._baselines[key]

    def _baseline_kernel(self, task: EvaluateTask) -> Kernel:
        """The first of the op's baselines that runs on the device."""
        roots = tuple(Path(root) for root in task.roots)
        op = self.project(task).op(task.op)
        for name in op.baselines:
            wanted = KernelId.parse(f"{task.op}/{name}")
            kernel = load_collection(roots, entry_points=False, only={task.op}, kernel=wanted, operators=False).kernel(str(wanted))
            if reason_not_runnable(kernel, self._device.type) is None:
                return kernel
        raise UsageError(f"op {task.op}: none of its baselines ({', '.join(op.baselines)}) runs on {self._device}")
