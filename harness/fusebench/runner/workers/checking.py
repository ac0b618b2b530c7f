"""Runs the accuracy gate in worker processes: on the device, and in Triton's interpreter where that is needed.

`check_all` checks one case before it is measured; `check_cases` checks many, several at a time if there is no GPU.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from ...cores import usable_cores
from ...device import Device
from ...errors import DeviceUnfitError
from ...schema import Accuracy, Result, Status
from ..case_kernels import AnyKernel, CaseKernels, interpreted, result_for, timeable
from .blame import ask_fairly
from .failures import FailureLog
from .pool import DEFAULT_SILENCE_S, WorkerPool
from .protocol import Checked, CheckTask, Failure, Progress, Reply

INTERPRETER_ROWS = 2
"""Tokens that a case is shrunk to in Triton's interpreter, which takes about five milliseconds per program: enough for a wrong token
stride or position to show, and for the check of one program per head to take seconds."""
MOST_PROCESSES = 8
"""On one GPU.  The checks of a nightly took 136 s in eight on an H200 of 16 cores, and 189 s in fourteen on an H100 of as many."""
MOST_WITHOUT_COMPILING = 4
"""The same where the compilers' caches hold the code: the GPU takes turns between processes, so more of them only wait for each other.  On
an H200 1173 checks took 84 s in four and 85 s in three."""
MEMORY_SHARE = 0.6
"""Part of a GPU's memory that the checks of one moment may take, as far as it can be foreseen."""
MEMORY_FACTOR = 20
"""Memory of a check in multiples of the case's minimum bytes: 14 to 18 for cases of 1.4 GB on an H200, nine of them for three draws that
are kept."""
LEAST_NEED = 2**28


def check(
    workers: WorkerPool,
    case_kernels: CaseKernels,
    kernel: AnyKernel,
    *,
    seed: int | None = None,
    prefix: str = "",
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_remark: Callable[[str], None] = lambda text: None,
) -> Result:
    """Put one kernel through the accuracy gate on one case: status `checked`, `wrong`, or how it failed.

    `prefix` precedes its id in the task: `protocol.BASE` for a kernel of the base revision.  `on_remark` hears of a failure that was
    another kernel's doing.

    Raises:
        DeviceUnfitError: no worker can work on the device at all.
    """
    kind = workers.device.kind
    in_interpreter = interpreted(kernel, kind)
    worker = workers.interpreter if in_interpreter else workers.native
    task = CheckTask(case=case_kernels.case, kernel=f"{prefix}{kernel.id}", seed=seed, rows=INTERPRETER_ROWS if in_interpreter else None)
    reply: Reply | None = workers.failures.of_file(kernel.file)
    if reply is None:
        fair = ask_fairly(worker, task, workers.failures, on_progress)
        reply = workers.failures.of_file(kernel.file) or fair.reply
        if fair.remark:
            on_remark(f"case {case_kernels.case.key}: {fair.remark}")

    def result(status: Status, reason: str, **known: object) -> Result:
        return result_for(case_kernels.case, case_kernels.shape, kernel, status, reason, **known)

    if isinstance(reply, Failure):
        if reply.unfit:
            raise DeviceUnfitError(f"case {case_kernels.case.key}: {reply.reason}")
        return result(reply.status, reply.reason)
    assert isinstance(reply, Checked), "a check is answered by Checked or Failure"
    if not reply.accuracy.passed:
        return result(Status.WRONG, reply.accuracy.reason, accuracy=reply.accuracy)
    reason = timeable(kernel, kind) or ""
    if in_interpreter:
        reason = f"{reason}: {_interpreted_how(reply.accuracy)}"
    return result(Status.CHECKED, reason, accuracy=reply.accuracy)


def _interpreted_how(accuracy: Accuracy) -> str:
    """The parts of a device's check that the interpreter's leaves out, in words."""
    rows = "all tokens" if accuracy.tokens is None else f"{accuracy.tokens} tokens"
    return f"on {rows}, bias at input magnitude 1 only, extra draws called once"


def check_all(
    workers: WorkerPool,
    case_kernels: CaseKernels,
    *,
    seed: int | None = None,
    known: Mapping[str, Accuracy] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_checked: Callable[[str, float], None] = lambda kernel, seconds: None,
    on_remark: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Put every runnable kernel of the case through the gate, in their order; the two workers work at the same time.

    All are checked on the same draws, which a worker computes once.  `on_progress`, and `on_checked` with a kernel and the seconds that its
    check took (compilation included), are called from two threads.  `on_remark`: as in `check`.

    Args:
        known: checks by kernel that passed already, and are not repeated.

    Raises:
        DeviceUnfitError: as `check`.
    """

    seed = _drawn(seed)

    def timed(kernel: AnyKernel) -> Result:
        accuracy = (known or {}).get(str(kernel.id))
        if accuracy is not None and workers.failures.of_file(kernel.file) is None:
            reason = timeable(kernel, workers.device.kind) or ""
            return result_for(case_kernels.case, case_kernels.shape, kernel, Status.CHECKED, reason, accuracy=accuracy)
        began = time.monotonic()
        result = check(workers, case_kernels, kernel, seed=seed, on_progress=on_progress, on_remark=on_remark)
        on_checked(str(kernel.id), time.monotonic() - began)
        return result

    def in_turn(kernels: Sequence[AnyKernel]) -> list[Result]:
        return [timed(kernel) for kernel in kernels]

    shares = _shares(case_kernels, workers.device.kind)
    with ThreadPoolExecutor(len(shares)) as pool:
        try:
            found = {result.kernel: result for results in pool.map(in_turn, shares) for result in results}
        except BaseException:
            workers.interrupt()  # nobody waits for what the other worker is doing: not on Ctrl-C, nor on a device that is unfit
            raise
    return [unless_spoiling(found[str(kernel.id)], workers.failures) for kernel in case_kernels.runnable]


def unless_spoiling(result: Result, failures: FailureLog, prefix: str = "") -> Result:
    """The result, unless the kernel spoiled its process for another one, which was found later; `prefix` as in `check`."""
    failure = failures.spoiling(f"{prefix}{result.kernel}", result.case_key)
    if failure is None or result.status is Status.CRASHED:
        return result
    return msgspec.structs.replace(result, status=failure.status, reason=failure.reason)


OnCase = Callable[[int, list[Result]], None]
"""Called with a case's place among the cases and its results, in their kernels' order, once all of them are there."""


def default_jobs(device: Device, cases: Sequence[CaseKernels]) -> int:
    """Checks at a time: as many as this process may use cores; on a GPU `most_processes()`, or as many of the largest case as its memory
    holds."""
    if device.kind == "cpu":
        return usable_cores()
    largest = max(map(memory_need, cases), default=LEAST_NEED)
    return max(1, min(most_processes(), memory_for_checks(device) // largest))


def most_processes(*, compiling: bool = True) -> int:
    """Processes that check on one GPU at a time: half the cores, at most `MOST_PROCESSES`, or `MOST_WITHOUT_COMPILING`."""
    return min(MOST_PROCESSES if compiling else MOST_WITHOUT_COMPILING, usable_cores() // 2)


def memory_for_checks(device: Device) -> int:
    """Bytes of a GPU's memory that checks may take; 0 where it is not known."""
    return int(MEMORY_SHARE * (device.memory_bytes or 0))


def memory_need(unit: CaseKernels) -> int:
    """Bytes that a check of the case takes on a GPU, roughly."""
    return LEAST_NEED + MEMORY_FACTOR * unit.facts.minimum_bytes


def check_cases(
    device: Device,
    roots: Sequence[Path],
    cases: Sequence[CaseKernels],
    *,
    jobs: int,
    silence_s: float = DEFAULT_SILENCE_S,
    excluded: Mapping[str, str] | None = None,
    seed: int | None = None,
    on_progress: Callable[[CaseKernels, Progress], None] = lambda case, progress: None,
    on_case: OnCase = lambda place, results: None,
    on_remark: Callable[[str], None] = lambda text: None,
) -> None:
    """Put every runnable kernel of every case through the gate, `jobs` at a time, each in processes of its own.

    A case's native and interpreted kernels are two pieces of work; pieces are begun in the order of `cases`, and `on_case` hears of
    cases as they are done.  `on_progress` and `on_case` are called from several threads, one at a time.

    Raises:
        DeviceUnfitError: as `check`; what runs elsewhere is ended.
    """
    pieces = [(place, share) for place, case in enumerate(cases) for share in _shares(case, device.kind) if share]
    missing = [sum(place == one for one, _ in pieces) for place in range(len(cases))]
    found: list[dict[str, Result]] = [{} for _ in cases]
    speaking, ended = threading.Lock(), threading.Event()

    def arrived(place: int, results: Sequence[Result]) -> None:
        with speaking:
            if ended.is_set():
                return  # whoever waited for a process that was ended with the rest has a failure that is none
            found[place] |= {result.kernel: result for result in results}
            missing[place] -= 1
            if missing[place] == 0:
                on_case(place, [found[place][str(kernel.id)] for kernel in cases[place].runnable])

    def show(case: CaseKernels, progress: Progress) -> None:
        with speaking:
            on_progress(case, progress)

    for place, count in enumerate(missing):
        if count == 0:
            on_case(place, [])

    def remark(text: str) -> None:
        with speaking:
            on_remark(text)

    seeds = [_drawn(seed) for _ in cases]
    failures = FailureLog()

    def work(place: int, share: Sequence[AnyKernel]) -> None:
        case = cases[place]
        with _borrowed(pool) as workers:
            results = [
                check(workers, case, kernel, seed=seeds[place], on_progress=lambda progress: show(case, progress), on_remark=remark)
                for kernel in share
            ]
        arrived(place, [unless_spoiling(result, failures) for result in results])

    jobs = max(1, min(jobs, len(pieces)))
    with ExitStack() as stack:
        # One thread each: the processes would contend for the cores that the others' pools of threads hold.
        threads = 1 if jobs > 1 else None
        ops = {case.op.name for case in cases}
        everyone = [
            stack.enter_context(WorkerPool(device, roots, silence_s, threads=threads, ops=ops, excluded=excluded, failures=failures))
            for _ in range(jobs)
        ]
        pool: queue.SimpleQueue[WorkerPool] = queue.SimpleQueue()
        for workers in everyone:
            pool.put(workers)
        executor = stack.enter_context(ThreadPoolExecutor(jobs))
        try:
            futures: list[Future[None]] = [executor.submit(work, place, share) for place, share in pieces]
            for future in as_completed(futures):
                future.result()
        except BaseException:
            ended.set()
            executor.shutdown(wait=False, cancel_futures=True)
            for workers in everyone:
                workers.interrupt()
            raise


def _drawn(seed: int | None) -> int:
    """The seed of a case's draws: `seed`, or a fresh one."""
    return secrets.randbits(32) if seed is None else seed


@contextmanager
def _borrowed(pool: queue.SimpleQueue[WorkerPool]) -> Iterator[WorkerPool]:
    workers = pool.get()
    try:
        yield workers
    finally:
        pool.put(workers)


def _shares(case_kernels: CaseKernels, device: str) -> tuple[list[AnyKernel], list[AnyKernel]]:
    """The runnable kernels to check on the device, and the ones to check in the interpreter."""
    shares: tuple[list[AnyKernel], list[AnyKernel]] = ([], [])
    for kernel in case_kernels.runnable:
        shares[interpreted(kernel, device)].append(kernel)
    return shares
