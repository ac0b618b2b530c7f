"""The devices, worker processes and findings of one pytest session.

A device is locked when it is first used and until the session ends.  A case is measured once, by the first of its tests: every kernel that
still has a test takes part, in the same paired rounds, and each test takes its own samples.
"""

from __future__ import annotations

import sys
from collections.abc import Collection as AbstractCollection
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ..device import Device, device_lock, environment_of, idle_findings, require_idle, resolve_device
from ..device.monitor import process_family
from ..device.nvml import open_monitor
from ..errors import DeviceUnfitError, FusebenchError
from ..report.wording import error_over_split
from ..runner.case_kernels import CaseKernels, timeable
from ..runner.context import MeasuringContext
from ..runner.run.measured_case import CaseMeasurement
from ..runner.run.options import default_plan
from ..runner.workers.checking import check_all
from ..runner.workers.pool import WorkerPool
from ..schema import Case, Result, SamplingPlan, Status
from ..stats.paired import spans_by_replicate
from .figures import Figures

if TYPE_CHECKING:
    from ..config import Project
    from ..runner.case_kernels import Kernels


class QuietReporter:
    """Keeps what a reader should know for the end of the session: pytest shows the progress."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def begin(self) -> None: ...
    def case(self, number: int, cases: int, case: Case, shape: str) -> None: ...
    def step(self, text: str, done: int = 0, total: int = 0) -> None: ...
    def result(self, result: Result) -> None: ...
    def line(self, text: str, *, failed: bool = False) -> None: ...
    def end(self) -> None: ...

    def note(self, text: str) -> None:
        """Keep a remark, once."""
        if text not in self.notes:
            self.notes.append(text)


class Measuring:
    """Made on first use; `close` ends the workers and frees the devices."""

    def __init__(self, config: pytest.Config) -> None:
        self.reporter = QuietReporter()
        self.shown: dict[str, Figures] = {}
        """By name of a test, its figures for the summary."""
        self._config = config
        self._stack = ExitStack()
        self._held: dict[str, DeviceUnfitError | None] = {}
        self._context: MeasuringContext | None = None
        self._cases: dict[str, dict[str, tuple[Result, Figures | None]] | FusebenchError] = {}

    def close(self) -> None:
        """End the workers, then free the devices."""
        self._stack.close()

    def plan(self, device_kind: str) -> SamplingPlan:
        """The plan of `fusebench run`, with the options' replicates and rounds."""
        changes = {name: self._config.getoption(f"fusebench_{name}") for name in ("replicates", "rounds")}
        return msgspec.structs.replace(default_plan(device_kind), **{name: value for name, value in changes.items() if value is not None})

    def hold(self, device: Device) -> None:
        """Lock the device until the session ends, and find it idle; a later call returns at once.

        Raises:
            DeviceUnfitError: another process holds or uses it, after --fusebench-wait seconds; again for every later call.
        """
        if device.lock_key not in self._held:
            try:
                self._take(device)
                self._held[device.lock_key] = None
            except DeviceUnfitError as error:
                # The remedies are written for the command line.
                text = str(error).replace("--wait", "--fusebench-wait").replace("--device", "--fusebench-device")
                self._held[device.lock_key] = DeviceUnfitError(text)
        if (unfit := self._held[device.lock_key]) is not None:
            raise unfit

    def _take(self, device: Device) -> None:
        for text in device.warnings:
            self.reporter.note(text)
        wait_s, note = self._config.getoption("fusebench_wait"), self.reporter.note
        self._stack.enter_context(device_lock(device, wait_s=wait_s, on_wait=note))
        torch = sys.modules.get("torch")
        if device.kind == "cpu" or torch is None or not torch.cuda.is_initialized():
            for text in require_idle(device, wait_s=wait_s, on_wait=note, own_pids=process_family()):
                note(text)
            return
        # In a container that lists no process, this process's own context is memory that nobody explains.
        found = [one for one in idle_findings(device, process_family(), open_monitor()) if one.kind not in ("memory", "utilisation")]
        if against := [str(one) for one in found if one.refuses]:
            raise DeviceUnfitError(f"{device} is not fit to measure on: {'; '.join(against)}")
        for one in found:
            note(str(one))

    def case(
        self, project: Project, collection: Kernels, entry: CaseKernels, device: Device, ops: AbstractCollection[str], *, timed: bool
    ) -> dict[str, tuple[Result, Figures | None]]:
        """By kernel id, its result on the case and, where it was timed, its figures; measured by the first call.

        Args:
            entry: the case with the kernels that take part.
            ops: ops of all the session's cases: workers load their kernels.
            timed: without it, accuracy alone is checked.

        Raises:
            FusebenchError: nothing can be measured on the device; the same for every test of the case.
        """
        key = entry.case.key
        if key not in self._cases:
            try:
                self._cases[key] = self._measure(project, collection, entry, device, ops, timed=timed)
            except FusebenchError as error:
                self._cases[key] = error
        found = self._cases[key]
        if isinstance(found, FusebenchError):
            raise found
        return found

    def _measure(
        self, project: Project, collection: Kernels, entry: CaseKernels, device: Device, ops: AbstractCollection[str], *, timed: bool
    ) -> dict[str, tuple[Result, Figures | None]]:
        context = self._measuring(project, collection, device, ops)
        if not timed or all(timeable(kernel, device.kind) is not None for kernel in entry.runnable):
            return {result.kernel: (result, None) for result in [*entry.declined, *check_all(context.pool, entry)]}
        work = CaseMeasurement(entry, context)
        work.measure(None)
        for text in context.distinct_warnings:
            self.reporter.note(text)
        return {result.kernel: (result, _figures(entry, work, result, context)) for result in work.results}

    def _measuring(self, project: Project, collection: Kernels, device: Device, ops: AbstractCollection[str]) -> MeasuringContext:
        """The workers of the suites' tests, which live until the session ends."""
        self.hold(device)
        if self._context is None:
            pool = self._stack.enter_context(WorkerPool(device, collection.roots, ops=ops, timer="auto", excluded=collection.excluded))
            context = MeasuringContext(device, project.root, self.reporter, pool=pool, plan=self.plan(device.kind))
            self._context = self._stack.enter_context(context)
        return self._context


def _figures(entry: CaseKernels, work: CaseMeasurement, result: Result, context: MeasuringContext) -> Figures | None:
    timing = result.measurement
    if result.status is not Status.MEASURED or timing is None or work.summary is None:
        return None
    facts: dict[str, Any] = {"shape": result.shape, "role": str(result.role), "launches": timing.kernels}
    if (error := error_over_split(result.accuracy)) is not None:
        facts["error_over_split"] = error
    if result.covers:
        facts["covers"] = result.covers
    return Figures(
        arm=result.kernel,
        spans=spans_by_replicate(sample for reply in work.replies for sample in reply.samples),
        trim=context.plan.trim,
        minimum_bytes=work.replies[0].minimum_bytes.get(result.kernel, 0),
        floor=work.summary.floor,
        over=entry.baseline_id,
        whole=not result.covers,
        device=context.device.name,
        timer=work.replies[0].timer,
        cache=str(context.plan.cache),
        not_cold=work.summary.not_cold,
        facts=facts,
    )


def machine_facts(config: pytest.Config) -> dict[str, str]:
    """What two sessions must share for their times to be compared."""
    try:
        device = resolve_device(config.getoption("fusebench_device"))
    except FusebenchError:
        return {}  # the collection of the suites says what is wrong with the option
    found = environment_of(device, Path.cwd())
    return {"device": found.device_name, "driver": found.driver, "torch": found.torch, "triton": found.triton}
