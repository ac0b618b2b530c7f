"""The accuracy gate over a selection, in worker processes: one for the device, one for Triton's interpreter where that is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from ..device import Device
from ..errors import DeviceUnfitError
from ..registry import Kernel
from ..schema import Result, Status
from .contenders import Contenders, interpreted, result_for, timeable
from .messages import Checked, CheckTask, Failure, Progress, WorkerSetup
from .process import WorkerProcess

INTERPRETER_ROWS = 2
"""Tokens that a case is shrunk to in Triton's interpreter, which takes about five milliseconds per program: enough for a wrong token
stride or position to show, and for the check of one program per head to take seconds."""
DEFAULT_SILENCE_S = 300.0
"""Seconds without a sign of life after which a kernel counts as hung.  A first torch.compile on two cores takes up to a minute."""


class Workers:
    """The worker processes of a run, started when first needed."""

    def __init__(self, device: Device, roots: Sequence[Path], silence_s: float = DEFAULT_SILENCE_S) -> None:
        self.device = device

        def worker(interpret: bool) -> WorkerProcess:
            setup = WorkerSetup(roots=tuple(roots), device=device.torch_name, gpu_uuid=device.uuid, interpret=interpret)
            return WorkerProcess(setup, silence_s=silence_s)

        self.native = worker(interpret=False)
        self.interpreter = worker(interpret=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.native.stop()
        self.interpreter.stop()

    def interrupt(self) -> None:
        """End both workers at once and for good; those who wait for a reply get a failure."""
        self.native.interrupt()
        self.interpreter.interrupt()


def check(
    workers: Workers,
    contenders: Contenders,
    kernel: Kernel,
    *,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Put one kernel through the accuracy gate on one case: status `checked`, `wrong`, or how it failed.

    Raises:
        DeviceUnfitError: no worker can work on the device at all.
    """
    kind = workers.device.kind
    in_interpreter = interpreted(kernel, kind)
    worker = workers.interpreter if in_interpreter else workers.native
    task = CheckTask(case=contenders.case, kernel=str(kernel.id), seed=seed, rows=INTERPRETER_ROWS if in_interpreter else None)
    reply = worker.ask(task, on_progress)

    def result(status: Status, reason: str, **known: object) -> Result:
        return result_for(contenders.case, contenders.shape, kernel, status, reason, **known)

    if isinstance(reply, Failure):
        if reply.unfit:
            raise DeviceUnfitError(f"case {contenders.case.key}: {reply.reason}")
        return result(reply.status, reply.reason)
    assert isinstance(reply, Checked), "a check is answered by Checked or Failure"
    if not reply.accuracy.passed:
        return result(Status.WRONG, reply.accuracy.reason, accuracy=reply.accuracy)
    return result(Status.CHECKED, timeable(kernel, kind) or "", accuracy=reply.accuracy)


def check_all(
    workers: Workers,
    contenders: Contenders,
    *,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Result]:
    """Put every runnable kernel of the case through the gate, in their order; the two workers work at the same time.

    `on_progress` is called from two threads.

    Raises:
        DeviceUnfitError: as `check`.
    """

    def in_turn(kernels: Sequence[Kernel]) -> list[Result]:
        return [check(workers, contenders, kernel, seed=seed, on_progress=on_progress) for kernel in kernels]

    shares: tuple[list[Kernel], list[Kernel]] = ([], [])
    for kernel in contenders.runnable:
        shares[interpreted(kernel, workers.device.kind)].append(kernel)
    with ThreadPoolExecutor(len(shares)) as pool:
        try:
            found = {result.kernel: result for results in pool.map(in_turn, shares) for result in results}
        except BaseException:
            workers.interrupt()  # nobody waits for what the other worker is doing: not on Ctrl-C, nor on a device that is unfit
            raise
    return [found[str(kernel.id)] for kernel in contenders.runnable]
