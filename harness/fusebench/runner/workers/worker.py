"""A worker process: loads the kernels, then checks and measures what it is told to, one task at a time.

Kernels run here and nowhere else, so one that crashes, hangs or corrupts the device takes a worker with it and not the run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import TimerError, UsageError, describe_exception
from ...registry import Collection, Kernel, load_collection
from ...registry.loading.watching import Watch
from ...registry.part import judged_by
from ...schema import Accuracy, Case, Role, Status
from ...stats.paired import InvalidSamplesError
from .cause import status_of
from .digests import digested, digests, same_codes
from .protocol import (
    BASE,
    CalibrationTask,
    Checked,
    CheckTask,
    CompareTask,
    Compiled,
    CompileTask,
    ConfirmTask,
    Failure,
    Measured,
    MeasureTask,
    PairsTask,
    Progress,
    Reply,
    Task,
    TimeTask,
    WorkerSetup,
)
from .tuning import forget_compiled_code, keep_tuning_in_memory

if TYPE_CHECKING:
    from ...accuracy.repetition import Repetition
    from ...accuracy.shared_draws import DrawStore
    from ...accuracy.timed_outputs import TimedOutputs
    from ...timing.arm import Arm
    from ...timing.placement import ArmSpec

READY = Progress(text="ready")
"""A worker's first words: it has loaded everything and waits for tasks."""
AROUND = "set-up and clean-up of measurements"
"""The phase in which a worker makes ready what it measures, and returns memory afterwards."""
NAME_BYTES = 256
"""Room for the name of the kernel that is being called, in memory that outlives the worker."""


def worker_main(connection: Connection, setup: WorkerSetup, calling: Any) -> None:
    """Entry point of the process: answers every task with one reply, until told None or the runner goes away.

    `calling` is an array of `NAME_BYTES` characters shared with the runner.  It always holds the name of the kernel or arm that is
    being called: it is to blame when the process dies or falls silent.
    """
    # Whatever a kernel prints must not end up in the runner's JSON document.
    os.dup2(2, 1)
    # Ctrl-C reaches every process of the terminal; what becomes of a worker is the runner's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the runner holds it back until here
    try:
        try:
            worker = _Worker(connection, setup, calling)
        except Exception as error:  # noqa: BLE001  no task was begun, so no kernel is to blame
            reason = f"no worker could be started on {setup.device}: {describe_exception(error, setup.roots)}"
            connection.send(Failure(status=Status.CRASHED, reason=reason, unfit=True))
            return
        connection.send(READY)
        worker.serve()
    except (EOFError, ConnectionError):
        return


class _Worker:
    def __init__(self, connection: Connection, setup: WorkerSetup, calling: Any) -> None:
        import torch

        self.connection = connection
        self.setup = setup
        self.calling = calling
        self.device = torch.device(setup.device)
        if setup.interpret:
            from ...accuracy.interpreter import install_exact_casts, install_remembered_builtins

            install_exact_casts()
            install_remembered_builtins()
        if setup.threads:
            torch.set_num_threads(setup.threads)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.started = False
        self.collection = self._load(setup.roots)
        self.base = self._load(setup.base_roots) if setup.base_roots else None
        self.started = True
        self.case_key = ""
        self.draws: DrawStore | None = None
        """Draws that the checks of a case's kernels share; None where there are none."""
        self.repetition: Repetition | None = None
        """Repeated calls of the kernels that are checked, once each; made with the first check."""
        if setup.timer and self.device.type == "cuda":
            self._start_timer()

    def _start_timer(self) -> None:
        """Start the profiler where it will be needed: here workers do so together, in their first measurements in turn."""
        from ...timing.cupti import CuptiTimer, start_profiler
        from ...timing.select import select_timer

        with suppress(Exception):  # what is wrong with it, the measurement says, or the timer that is taken in its place
            if isinstance(select_timer("cuda", self.setup.timer)[0], CuptiTimer):
                start_profiler(self.device)

    def _load(self, roots: Sequence[Path]) -> Collection:
        # Operators are for what is compiled, which few processes come to; importing the compiler would double their start.
        watch = Watch(self.setup.excluded, self._import)
        return load_collection(roots, entry_points=False, only=self.setup.ops, operators=False, watch=watch)

    def _import(self, text: str) -> None:
        """Note which file is about to be imported while the worker starts."""
        if not self.started:
            what, _, file = text.partition(" ")
            self._call(f"{what} {'/'.join(Path(file).parts[-2:])}" if file else "")

    def serve(self) -> None:
        while (task := self.connection.recv()) is not None:
            self.connection.send(self._answer(task))

    def _answer(self, task: Task) -> Reply:
        began = time.monotonic()
        if self.case_key not in ("", task.case.key):  # before its first case a worker has compiled nothing
            forget_compiled_code()
        self.case_key = task.case.key
        self._call(task.kernel if isinstance(task, CheckTask) else "")
        try:
            if isinstance(task, CheckTask):
                return self._check(task)
            self.draws = None
            if isinstance(task, CompileTask):
                return self._compile(task)
            measured = self._measure(task)
            self._return_memory()
            around = time.monotonic() - began - measured.seconds
            return msgspec.structs.replace(measured, phases_s={**measured.phases_s, AROUND: around})
        except (TimerError, InvalidSamplesError) as error:
            return Failure(status=Status.CRASHED, reason=str(error), unfit=True)
        except Exception as error:  # noqa: BLE001  whatever a kernel raises is that kernel's result
            self.draws = None  # it may have written anywhere before it failed
            reason = describe_exception(error, (*self.setup.roots, *self.setup.base_roots))
            return Failure(status=status_of(error), reason=reason, kernel=read_name(self.calling))

    def _call(self, name: str) -> None:
        """Note that the kernel or arm `name` is about to be called.  Precedes every timed call, so it must stay cheap."""
        self.calling.value = name.encode()[: NAME_BYTES - 1]

    def _return_memory(self) -> None:
        """Return memory that another worker may need: five fresh processes measure the same case in turn on one device."""
        if self.device.type == "cuda":
            import gc

            import torch

            gc.collect()
            if gc.get_freeze_count() == 0:
                gc.freeze()  # modules, for the most part: to walk them again after every measurement takes 0.2 s each time
            torch.cuda.empty_cache()

    def _progress(self, text: str, done: int = 0, total: int = 0, kernel: str = "") -> None:
        self.connection.send(Progress(text=text, done=done, total=total, kernel=kernel))

    def _check(self, task: CheckTask) -> Checked:
        """The check on the draws that the case's kernels share; without them where there is no memory for both."""
        import torch

        from ...accuracy.shared_draws import DrawStore

        self.draws = self.draws or DrawStore()
        try:
            return Checked(accuracy=self._judged(task))
        except torch.OutOfMemoryError:
            if self.draws.nbytes == 0:
                raise
        self.draws = None
        self._return_memory()
        return Checked(accuracy=self._judged(task))

    def _judged(self, task: CheckTask) -> Accuracy:
        from ...accuracy.gate import check_kernel
        from ...accuracy.repetition import Repetition

        self.repetition = self.repetition or Repetition()
        kernel, revision = self._kernel(task.kernel)
        op, params = self._case(task.case)
        return check_kernel(
            kernel if self.base is None else judged_by(kernel, self.base.ops.get(op.name)),
            op,
            params,
            split=self.collection.kernel(f"{op.name}/{op.split_reference}"),
            others=revision.kernels,
            device=self.device,
            seed=task.seed,
            rows=task.rows,
            store=self.draws,
            repetition=self.repetition,
            on_draw=lambda done, total: self._progress("check", done, total, task.kernel),
        )

    def _compile(self, task: CompileTask) -> Compiled:
        """Call each kernel as its check will, on inputs of the same layout."""
        import torch

        from ...accuracy.execution import place_at_random
        from ...registry.calling import call_form

        # Other processes compile at the same time, and in each of them Inductor, which is not imported yet, would start one per core.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        op, params = self._case(task.case)
        generator = torch.Generator(device=self.device).manual_seed(0)
        buffers = op.buffers(params, device=self.device, generator=generator)
        for number, name in enumerate(task.kernels):
            self._progress("compile", number, len(task.kernels), name)
            self._call(name)
            kernel, _ = self._kernel(name)
            keep_tuning_in_memory(inductor=kernel.role is Role.COMPILED)
            whole = op if kernel.part is None else kernel.part.op_of(op)
            arguments = whole.arguments(params, place_at_random(buffers, self.device, random.Random(0)).buffers)
            whole.apply(kernel, *call_form(whole, arguments))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        self._return_memory()
        return Compiled()

    def _measure(self, task: MeasureTask) -> Measured:
        from ...device import settle
        from ...registry.machine_code import combined
        from ...timing.measure import measure_case
        from ...timing.placement import STREAM, minimum_bytes
        from ...timing.select import select_timer
        from ...timing.yardstick import mix_of, yardstick_text

        op, params = self._case(task.case)
        timer, fallback = select_timer(self.device.type, task.timer)
        warm_up: dict[str, Any] = {}
        specs = self._specs(task, op)
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
            device=self.device,
            plan=task.plan,
            timer=timer,
            seed=task.seed,
            deadline=None if task.seconds is None else time.monotonic() + task.seconds,
            settle=lambda work: warm_up.update(settle(self.device.type, self.setup.gpu_uuid, work)),
            on_arm=lambda name: self._progress("warm up", kernel=name),
            on_call=self._call,
            on_replicate=lambda done, most: self._progress("measure", done, most),
            pairs=task.pairs if isinstance(task, PairsTask) else (),
            looks=task.looks if isinstance(task, CompareTask | CalibrationTask) else None,
            lengths=task.lengths if isinstance(task, ConfirmTask | CalibrationTask) else None,
            decided_before=identical,
            outputs=self._timed_outputs(op),
        )
        return Measured.of(
            timings,
            timer=timer.name,
            timer_fallback=fallback,
            warm_up=warm_up,
            minimum_bytes={spec.name: minimum_bytes(spec, op, params) for spec in specs},
            stream_shape=yardstick_text(mix_of(op, params), self.device.type) if any(spec.name == STREAM for spec in specs) else "",
            code=code,
            same_code=same_code,
        )

    def _timed_outputs(self, op: Any) -> TimedOutputs:
        """The judge of outputs of timed calls, by the contracts of their kernels in either revision."""
        from ...accuracy.timed_outputs import TimedOutputs

        def others(kernel: Kernel) -> Mapping[str, Kernel]:
            of_base = self.base is not None and self.base.kernels.get(str(kernel.id)) is kernel
            return self.base.kernels if of_base and self.base is not None else self.collection.kernels

        return TimedOutputs(op, split=self.collection.kernel(f"{op.name}/{op.split_reference}"), others=others)

    def _specs(self, task: MeasureTask, op: Any) -> list[ArmSpec]:
        """The arms of a task: kernels with yardsticks and control, where it names a baseline, and the arms that it names itself."""
        from ...timing.placement import ArmSpec, arm_specs

        named = [
            ArmSpec(arm.name, self._kernel(arm.kernel)[0], None if arm.params is None else op.parse_params(arm.params))
            for arm in (task.arms if isinstance(task, PairsTask) else ())
        ]
        if not isinstance(task, TimeTask | CompareTask | ConfirmTask):
            return named
        return arm_specs([self.collection.prepared(kernel) for kernel in task.kernels], self.collection.prepared(task.baseline), named)

    def _kernel(self, name: str) -> tuple[Kernel, Collection]:
        """The kernel of either revision, and the kernels of that revision."""
        revision = self.collection
        if name.startswith(BASE):
            if self.base is None:
                raise UsageError(f"kernel {name}: this worker was given no folder of the base revision")
            revision = self.base
        return revision.prepared(name.removeprefix(BASE)), revision

    def _case(self, case: Case) -> tuple[Any, Any]:
        op = self.collection.op(case.op)
        return op, op.parse_params(case.params)


def read_name(calling: Any) -> str:
    """The name that a worker's shared array holds; empty when no kernel was being called."""
    return bytes(calling.value).decode(errors="replace")
