"""Compiles the kernels of many cases in several processes at once, so that the checks find the code in the compilers' caches on disk.

Nothing depends on it: a kernel that does not compile here, or crashes, is found by its check.  What compilers tune by timing is not kept,
because the processes disturb each other; and peers, which may keep such choices in ways of their own, are left out.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import os
import queue
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ...device import Device
from ...schema import Role
from ..case_kernels import AnyKernel, CaseKernels, work_of
from .checking import usable_cores
from .pool import WorkerPool
from .process import WorkerProcess
from .protocol import Compiled, CompileTask, Failure

FEWEST_CASES = 12
"""Cases that are worth the start of further processes.  On an H200 compilation takes 1.4 s per case (189 s for 132), and eight processes
take some 10 s to import torch and its compiler together."""
MOST_PROCESSES = 8

OnStep = Callable[[int, int], None]
"""Called after each case with the number compiled and the number of cases."""


def compile_ahead(
    pool: WorkerPool,
    cases: Sequence[CaseKernels],
    *,
    processes: int | None = None,
    marks: Path | None = None,
    on_step: OnStep = lambda done, total: None,
) -> int:
    """Call every runnable kernel of every case once, in processes that end before this returns; returns the number of cases.

    Cases that an earlier call compiled are left out, as long as compiler, device and sources are the same and the cache exists.

    Args:
        processes: at a time; half the cores, at most `MOST_PROCESSES`, where None.
        marks: folder of a file per compiled case; in Inductor's cache where None, so that marks go with the code.
    """
    processes = min(MOST_PROCESSES, usable_cores() // 2) if processes is None else processes
    marks = marks or _inductor_cache() / "fusebench"
    distinct = {work_of(unit): unit for unit in reversed(cases) if _own(unit)}  # of equal ones the first
    waiting = [(mark, unit) for unit in reversed(distinct.values()) if not (mark := marks / _name(unit, pool.device, pool.roots)).exists()]
    if processes < 2 or len(waiting) < FEWEST_CASES:
        return 0
    pieces: queue.SimpleQueue[tuple[Path, CaseKernels]] = queue.SimpleQueue()
    for piece in waiting:
        pieces.put(piece)

    def work(worker: WorkerProcess) -> None:
        while True:
            try:
                mark, unit = pieces.get_nowait()
            except queue.Empty:
                return
            reply = worker.ask(CompileTask(case=unit.case, kernels=tuple(str(kernel.id) for kernel in _own(unit))))
            if isinstance(reply, Failure) and reply.unfit:
                return
            if isinstance(reply, Compiled):
                with suppress(OSError):  # without a mark it is only compiled again
                    mark.parent.mkdir(parents=True, exist_ok=True)
                    mark.touch()
            on_step(len(waiting) - pieces.qsize(), len(waiting))

    with pool.helpers(processes) as workers, ThreadPoolExecutor(processes) as executor:
        try:
            for future in as_completed([executor.submit(work, worker) for worker in workers]):
                future.result()
        except BaseException:
            for worker in workers:
                worker.interrupt()
            raise
    return len(waiting)


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
