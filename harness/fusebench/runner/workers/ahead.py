"""Checks the kernels of many cases in several processes at once, before the first case is measured.

Nothing depends on it.  A check that passed here counts, because neither inputs nor bounds depend on other processes.  After any other
outcome the kernel is checked again, alone: it may have failed for lack of the memory that others held.  A kernel that a compiler tunes by
timing is compiled here and checked alone: the processes disturb each other, so the choice is not kept, and the timed code may be another.
Kernels of torch.compile whose code its cache holds are left to their check alone: each process would trace them anew.
Peers, which may keep such choices in ways of their own, are left out.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import math
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import msgspec

from ...device import Device
from ...schema import Accuracy, Role
from ..case_kernels import AnyKernel, CaseKernels, work_of
from .checking import memory_for_checks, memory_need, most_processes
from .pool import WorkerPool
from .process import WorkerProcess
from .protocol import AheadTask, CheckedAhead, Failure, PrepareTask

FEWEST_CASES = 12
"""Cases to compile that are worth the start of further processes.  On an H200 compilation takes 1.4 s per case (189 s for 132), and eight
processes take some 20 s to import torch and its compiler together."""
FEWEST_CHECKS = 40
"""The same for cases whose code is in the compilers' caches: a check takes 0.6 to 0.8 s per case then."""

OnStep = Callable[[int, int], None]
"""Called after each case with the number done and the number of cases."""


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """The checks that were made ahead."""

    cases: int = 0
    """Cases whose kernels were called."""
    passed: dict[Hashable, dict[str, Accuracy]] = {}
    """By the case's work and by kernel, the checks that count."""
    wrong: dict[Hashable, dict[str, Accuracy]] = {}
    """The same of kernels that were wrong, which are checked again."""
    seconds: dict[str, float] = {}
    """By kernel, the seconds of its checks."""


def check_ahead(
    pool: WorkerPool,
    cases: Sequence[CaseKernels],
    *,
    processes: int | None = None,
    marks: Path | None = None,
    seconds: float | None = None,
    on_step: OnStep = lambda done, total: None,
) -> Checks:
    """Check every runnable kernel of every case, in processes that end before this returns.

    Meanwhile the pool's native worker imports the compilers and starts the timer.  Nothing is done for few cases, whose checks take less
    time than the start of the processes.

    Args:
        processes: at a time; `checking.most_processes` where None.
        seconds: no further case is begun after them; None for no limit.
        marks: folder of a file per compiled case; in Inductor's cache where None, so that marks go with the code.
    """
    marks = marks or _inductor_cache() / "fusebench"
    distinct = {work_of(unit): unit for unit in reversed(cases) if _own(unit)}  # of equal ones the first
    marked = {work: marks / _name(unit, pool.device, pool.roots) for work, unit in distinct.items()}
    cached = {work for work, mark in marked.items() if mark.exists()}
    due = {
        work: [kernel for kernel in _own(unit) if kernel.role is not Role.COMPILED or work not in cached] for work, unit in distinct.items()
    }
    units = [unit for work, unit in reversed(distinct.items()) if due[work]]
    compiling = sum(work_of(unit) not in cached for unit in units) >= FEWEST_CASES
    processes = most_processes(compiling=compiling) if processes is None else processes
    if processes < 2 or not (compiling or len(units) >= FEWEST_CHECKS):
        return Checks()
    found = Checks(cases=len(units), passed={}, wrong={}, seconds={})
    lost: set[str] = set()
    """Kernels that took a process down: each costs the start of another one."""
    repeating: dict[str, WorkerProcess] = {}
    """By kernel, the process that makes its repeated calls."""
    queue = _Queue(units, memory_for_checks(pool.device), processes)

    deadline = time.monotonic() + seconds if seconds is not None else math.inf

    def work(worker: WorkerProcess) -> None:
        while time.monotonic() < deadline:
            with queue.next() as unit:
                if unit is None:
                    return
                kernels = tuple(name for kernel in due[work_of(unit)] if (name := str(kernel.id)) not in lost)
                checked = queue.has_room(unit)
                elsewhere = tuple(name for name in kernels if checked and repeating.setdefault(name, worker) is not worker)
                seed = secrets.randbits(32)
                reply = worker.ask(AheadTask(case=unit.case, kernels=kernels, seed=seed, checked=checked, repeated_elsewhere=elsewhere))
            if isinstance(reply, Failure):
                if reply.unfit:
                    return
                if reply.lost:
                    lost.add(reply.kernel)
            elif isinstance(reply, CheckedAhead):
                with suppress(OSError):  # without a mark it only counts as uncompiled
                    mark = marked[work_of(unit)]
                    mark.parent.mkdir(parents=True, exist_ok=True)
                    mark.touch()
                _take_in(found, work_of(unit), reply)
            on_step(len(units) - queue.waiting, len(units))

    compiled = any(kernel.role is Role.COMPILED for unit in distinct.values() for kernel in _own(unit))
    with pool.helpers(processes) as workers, ThreadPoolExecutor(processes + 1) as executor:
        try:
            executor.submit(pool.native.ask, PrepareTask(case=units[0].case, timer=pool.timer, compiler=compiled))
            for future in as_completed([executor.submit(work, worker) for worker in workers]):
                future.result()
        except BaseException:
            for worker in (*workers, pool.native):
                worker.interrupt()
            raise
    return found


def _take_in(found: Checks, work: Hashable, reply: CheckedAhead) -> None:
    found.passed[work] = {name: one for name, one in reply.accuracy.items() if one.passed}
    found.wrong[work] = {name: one for name, one in reply.accuracy.items() if not one.passed}
    for name, seconds in reply.seconds.items():
        found.seconds[name] = found.seconds.get(name, 0.0) + seconds


class _Queue:
    """Hands out cases, as many at a time as the memory lets.

    A case that needs more than a process's share of the memory is large.  Large cases keep others of their kind waiting, so the largest is
    handed out first, one at a time beside the others, and several only when no other case is left.  In the suites' order the large cases
    come last: a nightly's twenty or so were then checked one by one while seven of eight processes had no work.

    Of the other cases, one of each op comes before the second of any: neighbours use the same kernels, which each process would compile
    anew, since none of them finds what the others are still compiling.
    """

    def __init__(self, units: Sequence[CaseKernels], memory: int, processes: int) -> None:
        """`memory`: bytes; 0 where it is not known, and not limited."""
        self._memory, self._free = memory, memory
        share = memory // processes if memory else math.inf
        self._large = sorted((one for one in units if memory_need(one) > share), key=memory_need, reverse=True)
        self._others = _in_turn(one for one in units if memory_need(one) <= share)
        self._large_out = 0
        """Large cases that are being checked."""
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """Cases that were not handed out."""
        return len(self._large) + len(self._others)

    def has_room(self, unit: CaseKernels) -> bool:
        """Whether the memory suffices for the checks of a case; calls of its kernels need less."""
        return not self._memory or memory_need(unit) <= self._memory

    @contextmanager
    def next(self) -> Iterator[CaseKernels | None]:
        """The next case for which there is memory, waiting until there is; None at the end."""
        with self._changed:
            while (unit := self._fitting()) is None and self.waiting:
                self._changed.wait()
            taken, large = 0, False
            if unit is not None:
                taken, large = self._taken(unit), unit in self._large
                (self._large if large else self._others).remove(unit)
                self._free -= taken
                self._large_out += large
        try:
            yield unit
        finally:
            with self._changed:
                self._free += taken
                self._large_out -= large
                self._changed.notify_all()

    def _fitting(self) -> CaseKernels | None:
        """The case to hand out next; None while there is no memory for one that may be, or none is left."""
        waiting = [*self._large, *self._others] if not self._large_out else self._others or self._large
        return next((one for one in waiting if not self._memory or self._taken(one) <= self._free), None)

    def _taken(self, unit: CaseKernels) -> int:
        return min(self._memory, memory_need(unit))


def _in_turn(units: Iterable[CaseKernels]) -> list[CaseKernels]:
    """The first unit of each op in order, then the second ones, and so on."""
    met: Counter[str] = Counter()
    placed = []
    for unit in units:
        placed.append((met[unit.op.name], unit))
        met[unit.op.name] += 1
    return [unit for _, unit in sorted(placed, key=lambda one: one[0])]


def _own(unit: CaseKernels) -> list[AnyKernel]:
    return [kernel for kernel in unit.runnable if kernel.role is not Role.PEER]


def _inductor_cache() -> Path:
    """Inductor's cache folder, as torch chooses it."""
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}"))


def _name(unit: CaseKernels, device: Device, roots: Sequence[Path]) -> str:
    """A file name that stands for the code of all kernels of the case."""
    parts = [*map(str, work_of(unit)), *(str(kernel.id) for kernel in _own(unit)), device.name]
    parts += [f"{package} {_version(package)}" for package in ("torch", "triton")]
    parts += [_sources(root, unit.op.name) for root in roots]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


@functools.cache
def _sources(root: Path, op: str) -> str:
    """A digest of the files of the op, and of those that ops share."""
    found = hashlib.sha256()
    for folder in (root / op, root / "_shared"):
        for file in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            found.update(f"{file.relative_to(root)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return found.hexdigest()
