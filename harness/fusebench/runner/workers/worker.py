"""A worker process: loads the kernels, then checks and measures what it is told to, one task at a time.

Kernels run here and nowhere else, so one that crashes, hangs or corrupts the device takes a worker with it and not the run.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...device.cpu_process import THREADS, hold_memory, settings
from ...errors import TimerError, UnknownNameError, UsageError
from ...registry import Collection, Kernel, load_collection
from ...registry.loading.watching import Watch
from ...registry.op_parts import judged_by
from ...schema import Accuracy, Case, Role, Status
from ...stats.paired import InvalidSamplesError
from .cause import describe_cause, is_device_fault, status_of
from .channel import WorkerEnd
from .digests import digested, digests, same_codes
from .imports import ImportWatch, TamperingImportError
from .protocol import (
    BASE,
    AheadTask,
    CalibrationTask,
    Checked,
    CheckedAhead,
    CheckTask,
    CompareTask,
    ConfirmTask,
    Failure,
    Measured,
    MeasureTask,
    PairsTask,
    Prepared,
    PrepareTask,
    Progress,
    Reply,
    Task,
    TimeTask,
    WorkerSetup,
    kernels_of,
)
from .shared_state import SharedState, in_words
from .surroundings import settle_in
from .tuning import forget_compiled_code, keep_tuning_in_memory

if TYPE_CHECKING:
    import torch

    from ...accuracy.repetition import Repetition
    from ...accuracy.shared_draws import DrawStore
    from ...accuracy.timed_outputs import TimedOutputs
    from ...timing.arm import Arm
    from ...timing.placement import ArmSpec

KEPT_BYTES = 2**28
"""Memory of the GPU that may stay in use after a failure before the process is replaced: workspaces of libraries are smaller."""
READY = Progress(text="ready")
"""A worker's first words: it has loaded everything and waits for tasks."""
AROUND = "set-up and clean-up of measurements"
"""The phase in which a worker makes ready what it measures, and returns memory afterwards."""
NAME_BYTES = 1024
"""Room for the name of the kernel that is being called, in memory that outlives the worker."""
FILE = "file:"
"""Precedes, in that memory, the path of the kernel file that is being imported."""


class Streams(NamedTuple):
    """Ends of pipes that a worker's process gets: see `surroundings.settle_in`."""

    output: Connection
    lifeline: Connection


class TamperingError(BaseException):
    """A kernel left shared state changed.  No `Exception`, so that nothing on its way takes it for the failure of a call."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(kernel, reason)
        self.kernel, self.reason = kernel, reason


def worker_main(connection: WorkerEnd, setup: WorkerSetup, calling: Any, streams: Streams | None = None) -> None:
    """Entry point of the process: answers every task with one reply, until told None or the runner goes away.

    `calling` is an array of `NAME_BYTES` characters shared with the runner.  It always holds the name of the kernel or arm that is
    being called, or of the file that is being imported: it is to blame when the process dies or falls silent.
    """
    settle_in(streams.output if streams is not None else None, streams.lifeline if streams is not None else None)
    try:
        try:
            worker = _Worker(connection, setup, calling)
        except TamperingImportError as error:
            connection.send(Failure(status=Status.CRASHED, reason=error.reason, file=error.file, tampered=True))
            return
        except Exception as error:  # noqa: BLE001  no task was begun, so no kernel is to blame
            reason = f"no worker could be started on {setup.device}: {describe_cause(error, setup.roots)}"
            connection.send(Failure(status=Status.CRASHED, reason=reason, unfit=True))
            return
        connection.send(READY)
        worker.serve()
    except (EOFError, ConnectionError):
        return


class _Worker:
    def __init__(self, connection: WorkerEnd, setup: WorkerSetup, calling: Any) -> None:
        # One process compiles: Inductor would start one per core, which takes longer than what one case compiles.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        import torch

        self.connection = connection
        self.setup = setup
        self.calling = calling
        self.device = torch.device(setup.device)
        if setup.interpret:
            from ...accuracy.interpreter import install_exact_casts, install_remembered_builtins

            install_exact_casts()
            install_remembered_builtins()
        if threads := THREADS if setup.cpu_process else setup.threads:
            torch.set_num_threads(threads)
        self.holds_memory = hold_memory() if setup.cpu_process else False
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        _import_trusted(self.device.type, timed=bool(setup.timer))
        self.state = SharedState()
        self.examined: set[str] = set()
        """Kernels and arms after whose call the shared state was compared."""
        self.examine_each_call = False
        watch = ImportWatch(self.state, setup.excluded, lambda file: self._note(f"{FILE}{file}" if file else ""))
        self.collection = self._load(setup.roots, watch)
        self.base = self._load(setup.base_roots, watch) if setup.base_roots else None
        watch.close()
        self.case_key = ""
        self._frozen = False
        self.draws: DrawStore | None = None
        """Draws that the checks of a case's kernels share; None where there are none."""
        self.repetition: Repetition | None = None
        """Repeated calls of the kernels that are checked, once each; made with the first check."""
        if setup.timer:
            self._start_timer(setup.timer)

    def _start_timer(self, timer: str) -> None:
        """Start the profiler where it will be needed: here workers do so together, in their first measurements in turn."""
        if self.device.type != "cuda":
            return
        from ...timing.cupti import CuptiTimer, start_profiler
        from ...timing.select import select_timer

        with suppress(Exception):  # what is wrong with it, the measurement says, or the timer that is taken in its place
            if isinstance(select_timer("cuda", timer)[0], CuptiTimer):
                start_profiler(self.device)
        self.state = SharedState()

    def _load(self, roots: Sequence[Path], watch: Watch) -> Collection:
        # Operators are for what is compiled, which few processes come to; importing the compiler would double their start.
        return load_collection(roots, entry_points=False, only=self.setup.ops, operators=False, watch=watch)

    def serve(self) -> None:
        while (task := self.connection.recv()) is not None:
            self.connection.send(self._answer(task))

    def _answer(self, task: Task) -> Reply:
        """The reply to a task.  Whatever a kernel raises is that kernel's result, also what would end a process."""
        if self.case_key not in ("", task.case.key):  # before its first case a worker has compiled nothing
            forget_compiled_code()
        self.case_key = task.case.key
        self._note(task.kernel if isinstance(task, CheckTask) else "")
        self.examined.clear()
        self.examine_each_call = isinstance(task, MeasureTask) and task.examine_each_call
        allocated = self._allocated()
        try:
            reply = self._reply(task)
        except (TimerError, InvalidSamplesError) as error:
            reply = Failure(status=Status.CRASHED, reason=str(error), unfit=True)
        except TamperingError as error:
            reply = Failure(status=Status.CRASHED, reason=error.reason, kernel=error.kernel, tampered=True)
        except BaseException as error:  # noqa: BLE001
            self.draws = None  # it may have written anywhere before it failed
            reason = describe_cause(error, (*self.setup.roots, *self.setup.base_roots))
            reply = Failure(status=status_of(error), reason=reason, kernel=read_name(self.calling), unfit=is_device_fault(error))
        if isinstance(reply, Failure) and not reply.tampered:
            reply = msgspec.structs.replace(reply, broken=self._is_broken(allocated))
        return self._untampered(task, reply)

    def _reply(self, task: Task) -> Reply:
        began = time.monotonic()
        if isinstance(task, CheckTask):
            return self._check(task)
        self.draws = None
        if isinstance(task, AheadTask):
            return self._check_ahead(task)
        if isinstance(task, PrepareTask):
            return self._prepare(task)
        measured = self._measure(task)
        self._return_memory()
        around = time.monotonic() - began - measured.seconds
        return msgspec.structs.replace(measured, phases_s={**measured.phases_s, AROUND: around})

    def _untampered(self, task: Task, reply: Reply) -> Reply:
        """The reply, unless shared state was left changed since the task began: then nothing it says can be relied on."""
        changes = self.state.changes()
        if not changes:
            self.state.extend()
            return reply
        if isinstance(reply, Failure) and reply.tampered:
            return reply
        reason = in_words(changes)
        if isinstance(reply, Failure):
            reason += f"; then: {reply.reason}"
        return Failure(status=Status.CRASHED, reason=reason, kernel=self._changed_by(task), tampered=True)

    def _changed_by(self, task: Task) -> str:
        """The kernel of the task that left shared state changed, as far as that is known."""
        if isinstance(task, CheckTask):
            return task.kernel
        kernels = kernels_of(task)
        file = self.state.changed_by()
        written = [name for name in kernels if file and self._kernel(name)[0].file == file]
        if len(written) == 1:
            return written[0]
        return kernels[0] if len(kernels) == 1 else ""

    def _call(self, name: str) -> None:
        """Note that the kernel or arm `name` is about to be called.  Precedes every timed call, so it must stay cheap."""
        before = read_name(self.calling)
        if before and (before not in self.examined or self.examine_each_call):
            self.examined.add(before)
            if changes := self.state.changes():
                raise TamperingError(before, in_words(changes))
        self._note(name)

    def _note(self, name: str) -> None:
        self.calling.value = name.encode()[: NAME_BYTES - 1]

    def _allocated(self) -> int:
        """Bytes that torch has handed out on the GPU."""
        if self.device.type != "cuda":
            return 0
        import torch

        return torch.cuda.memory_allocated(self.device)

    def _is_broken(self, allocated: int) -> bool:
        """Whether the GPU answers no more in this process, or a kernel that failed keeps memory.

        Args:
            allocated: bytes that were in use before the task.
        """
        if self.device.type != "cuda":
            return False
        import torch

        try:
            torch.cuda.synchronize(self.device)
            self._return_memory()
            answers = int(torch.arange(64, device=self.device).add_(1).sum()) == 64 * 65 // 2
        except Exception:  # noqa: BLE001  an error that stays, such as an illegal access
            return True
        return not answers or self._allocated() > allocated + KEPT_BYTES

    def _return_memory(self) -> None:
        """Return memory that another worker may need: five fresh processes measure the same case in turn on one device."""
        if self.device.type == "cuda":
            import gc

            import torch

            gc.collect()
            if not self._frozen:
                gc.freeze()  # modules, for the most part: to walk or count them after every measurement takes 0.1 to 0.7 s each time
                self._frozen = True
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

    def _check_ahead(self, task: AheadTask) -> CheckedAhead:
        """Check each kernel, or call it where there is no memory for more; errors are left to its check alone."""
        accuracy: dict[str, Accuracy] = {}
        seconds: dict[str, float] = {}
        tuned = []
        for number, name in enumerate(task.kernels):
            self._progress("check", number, len(task.kernels), name)
            self._call(name)
            kernel, _ = self._kernel(name)
            began, tunings = time.monotonic(), keep_tuning_in_memory(inductor=kernel.role is Role.COMPILED)
            try:
                if task.checked:
                    accuracy[name] = self._check(CheckTask(case=task.case, kernel=name, seed=task.seed)).accuracy
                else:
                    self._call_once(task.case, kernel)
            except Exception as error:
                if is_device_fault(error):
                    raise
                self.draws = None
            seconds[name] = time.monotonic() - began
            if keep_tuning_in_memory(inductor=kernel.role is Role.COMPILED) > tunings:
                tuned.append(name)
        self.draws = None
        self._return_memory()
        return CheckedAhead(accuracy=accuracy, tuned=tuple(tuned), seconds=seconds)

    def _call_once(self, case: Case, kernel: Kernel) -> None:
        """Call a kernel as its check will, on inputs of the same layout."""
        import torch

        from ...accuracy.execution import place_at_random
        from ...registry.calling import call_form

        op, params = self._case(case)
        generator = torch.Generator(device=self.device).manual_seed(0)
        buffers = op.buffers(params, device=self.device, generator=generator)
        whole = op if kernel.part is None else kernel.part.op_of(op)
        arguments = whole.arguments(params, place_at_random(buffers, self.device, random.Random(0)).buffers)
        whole.apply(kernel, *call_form(whole, arguments))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _prepare(self, task: PrepareTask) -> Prepared:
        """Import torch.compile, by compiling something small, and start the timer: on an H200 they take 12 s and 3 s."""
        if task.compiler:
            import torch

            torch.compile(_successor, fullgraph=True, dynamic=False)(torch.zeros(64, device=self.device))
            # Its code would stay among this module's names until a kernel's task forgets it, and be called that kernel's change.
            forget_compiled_code()
        self._start_timer(task.timer)
        return Prepared()

    def _measure(self, task: MeasureTask) -> Measured:
        from ...device import settle
        from ...registry.machine_code import combined
        from ...timing.measure import measure_case
        from ...timing.placement import STREAM, minimum_bytes
        from ...timing.select import select_timer
        from ...timing.yardstick import mix_of, yardstick_text

        self._require_settings()
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

    def _require_settings(self) -> None:
        """Raise TimerError where this process would measure on a CPU in another way than the run's other ones."""
        expected = self.setup.cpu_process
        if expected and (found := settings(held=self.holds_memory)) != expected:
            raise TimerError(f"this process would measure with {found}; expected {expected}, as in every process of the run")

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
        try:
            return revision.prepared(name.removeprefix(BASE)), revision
        except UnknownNameError as error:
            problems = [str(one) for one in revision.problems if one.op == name.removeprefix(BASE).partition("/")[0]]
            if not problems:
                raise
            raise UsageError(f"{error} Not loaded: {'; '.join(problems)}") from error

    def _case(self, case: Case) -> tuple[Any, Any]:
        op = self.collection.op(case.op)
        return op, op.parse_params(case.params)


def _successor(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _import_trusted(device: str, *, timed: bool) -> None:
    """Import everything but the kernels, so that the shared state is known before the first of them is imported."""

    from ...accuracy import gate  # noqa: F401

    if timed or device == "cuda":
        from ...timing import measure, select  # noqa: F401
    if device == "cuda" or "triton" in sys.modules:
        with suppress(ImportError):
            import triton.language
            import triton.testing  # noqa: F401


def read_name(calling: Any) -> str:
    """The name that a worker's shared array holds; empty when no kernel was being called."""
    return bytes(calling.value).decode(errors="replace")
