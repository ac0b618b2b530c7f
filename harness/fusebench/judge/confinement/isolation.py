"""Confine a process that is about to import a kernel file that nobody trusts.

`confine` runs inside that process, with or without root, and changes nothing outside of it.  Every measure is reported, and one that the
system lacks says why: the evaluation passes the list on.  `protect` hides the memory of trusted processes.

This file holds the order of the measures, and the files that may be read and written.  The measures themselves are in `own_process`,
`landlock` and `seccomp`.  The other half, starting such a process and killing all of it, is `confined_process`.

Where Landlock and seccomp are both active, the candidate can read the Python installation, compilers, CUDA's libraries, /proc and /sys, and
the given paths; it can write its scratch folder; it can talk to nobody and signal nobody.  /dev/shm is closed: share memory by `memfd`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ...schema.evaluation import IsolationMeasure
from . import own_process
from .confined_process import ConfinedProcess, start_confined
from .landlock import RENAME_ABI, SCOPE_ABI, TCP_ABI, TRUNCATE_ABI, restrict_files
from .outcome import Outcome
from .process_tree import kill_tree
from .seccomp import install_filter

__all__ = ["ConfinedProcess", "Measure", "Outcome", "confine", "kill_tree", "protect", "start_confined"]

Measure = IsolationMeasure

_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/os-release",
    "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/OpenCL", "/etc/nvidia", "/run/nvidia", "/opt/cuda",
    "/dev/random", "/dev/urandom",
)  # fmt: skip
"""What Python, compilers and the CUDA driver read. Memory and environment of other processes in /proc stay closed: those files need the
right to trace, which Landlock denies."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_GPU_DEVICES = ("nvidia*", "nvhost*", "nvmap", "dxg")
_PROGRAMS = ("cc", "gcc", "g++", "c++", "clang", "ptxas", "nvcc")
_LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "CPATH", "LIBRARY_PATH")


class Confined(Protocol):
    """The first message to a process of a candidate: how it confines itself."""

    @property
    def scratch(self) -> str: ...

    @property
    def roots(self) -> Sequence[str]: ...

    @property
    def memory_bytes(self) -> int | None: ...


def confine_candidate(asked: Confined, *, seconds: int | None, gpu: bool, descriptors: Collection[int]) -> list[Measure]:
    """`confine`, for a process that may read the project's folders and change its scratch folder alone."""
    return confine(
        Path(asked.scratch),
        readable=[Path(root) for root in asked.roots],
        writable=[],
        memory_bytes=asked.memory_bytes,
        seconds=seconds,
        gpu=gpu,
        descriptors=descriptors,
    )


def confine(
    scratch: Path,
    *,
    readable: Sequence[Path],
    writable: Sequence[Path],
    memory_bytes: int | None,
    seconds: int | None,
    gpu: bool,
    descriptors: Collection[int] | None = None,
) -> list[Measure]:
    """Confine the calling process, and what it starts, for ever.

    Call it before torch is imported, while there is one thread: threads that exist already would escape.

    Args:
        scratch: existing folder; becomes the working folder, HOME, the folder of temporary files and of every compiler's cache.
        readable: files and folders that may be read, beside Python, compilers and libraries: the op's folder, the candidate's file.
        writable: files and folders that may be changed, beside `scratch`.
        memory_bytes: most private memory of one process; not limited with a GPU, whose driver reserves more than it uses.
        seconds: expected wall time; a process may use as many CPU seconds on each core.
        gpu: whether NVIDIA's devices may be used.
        descriptors: open files to keep beside 0, 1 and 2; None to trust the caller that no other was inherited.

    Returns:
        Every measure, active or not, in the order of their application.
    """
    if sys.platform != "linux":
        return [Measure(name="isolation", active=False, reason=f"written for Linux, not for {sys.platform}")]
    # Paths first: afterwards neither folders nor variables are what they were.
    allowed = [*_runtime_paths(), *readable]
    devices = [Path(name) for name in _DEVICES]
    if gpu:
        devices += [path for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
    scratch = scratch.resolve(strict=True)
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    steps: list[tuple[str, Callable[[], str | None]]] = [
        ("process_group", own_process.lead_a_session),
        ("parent_death", own_process.end_with_parent),
        ("children_kept", own_process.keep_children),
        ("descriptors", lambda: own_process.close_others(descriptors)),
        ("core_dumps", own_process.dump_no_core),
        ("oom_victim", own_process.become_oom_victim),
        ("scratch_folder", lambda: own_process.move_to(scratch)),
        ("memory_limit", lambda: own_process.limit_memory(memory_bytes, gpu)),
        ("cpu_limit", lambda: own_process.limit_seconds(seconds)),
        ("file_size_limit", own_process.limit_file_size),
        ("task_limit", own_process.limit_tasks),
        ("capabilities", own_process.drop_capabilities),
        ("no_new_privileges", own_process.forbid_new_privileges),
    ]
    measures = [_apply(name, step) for name, step in steps]
    landlock = _restrict(threads, allowed, [scratch, *writable, *([_own_tasks()] if gpu else ())], devices)
    measures += landlock
    scoped = any(measure.name == "landlock_signals" and measure.active for measure in landlock)
    return [*measures, _apply("seccomp", lambda: install_filter(signals_scoped=scoped))]


def protect() -> Measure:
    """Hide this trusted process: a process of the same user can then neither trace it nor read its memory, environment and open files."""
    return _apply("hidden_memory", own_process.hide_memory)


def _apply(name: str, step: Callable[[], str | None]) -> Measure:
    """The measure, active unless `step` returns or raises a reason."""
    try:
        reason = step() or ""
    except (OSError, ValueError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    return Measure(name=name, active=not reason, reason=reason)


def _own_tasks() -> Path:
    """The folder of this process's threads in /proc.  CUDA's driver writes their names there, and does not start where it may not.

    A descriptor stays open: a rule belongs to the folder as the kernel remembers it, and without one it may forget.
    """
    path = Path("/proc/self/task").resolve()
    os.open(path, os.O_PATH)
    return path


def _restrict(threads: int, readable: Sequence[Path], writable: Sequence[Path], devices: Sequence[Path]) -> list[Measure]:
    names = {"landlock_files": 1, "landlock_truncate": TRUNCATE_ABI, "landlock_tcp": TCP_ABI, "landlock_signals": SCOPE_ABI}
    try:
        abi = restrict_files(readable=readable, writable=writable, devices=devices)
        if abi < RENAME_ABI:
            os.environ["TRITON_CACHE_MANAGER"] = "fusebench.judge.confinement.same_folder_cache:SameFolderCache"
    except OSError as error:
        return [Measure(name=name, active=False, reason=error.strerror or str(error)) for name in names]
    measures = []
    for name, since in names.items():
        reason = f"needs Landlock ABI {since}; the kernel has {abi}" if abi < since else ""
        if threads > 1:
            reason = f"{threads - 1} threads existed before and are not confined"
        measures.append(Measure(name=name, active=not reason, reason=reason))
    return measures


def _runtime_paths() -> Iterator[Path]:
    """What Python, its packages, compilers and libraries need; never a folder above the user's own files."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  raises nothing for a user without a home
    for name in _SYSTEM:
        yield Path(name)
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path]
    for variable in _LIBRARY_VARIABLES:
        found += os.environ.get(variable, "").split(os.pathsep)
    for program in (*_PROGRAMS, *(os.environ[name] for name in ("CC", "CXX") if os.environ.get(name))):
        if where := shutil.which(program):
            # The folder of a link and that of its target: a compiler may be found through either.
            found += [str(Path(where).absolute().parent.parent), str(Path(where).resolve().parent.parent)]
    for text in found:
        path = Path(text)
        for place in {path, path.resolve()} if text else ():
            if place.is_absolute() and place not in (home, *home.parents):
                yield place
