"""Confine a process that is about to import a kernel file that nobody trusts.

`confine` runs inside that process, with or without root, and changes nothing outside of it.  Every measure is reported, and one that the
system lacks says why: the evaluation passes the list on.  `protect` hides the memory of trusted processes.  The other half, starting such a
process and killing all of it, is `judge.confined_process`.

Where Landlock and seccomp are both active, the candidate can read the Python installation, compilers, CUDA's libraries, /proc and /sys, and
the given paths; it can write its scratch folder; it can talk to nobody and signal nobody.  /dev/shm is closed: share memory by `memfd`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ...schema.evaluation import IsolationMeasure
from .confined_process import PARENT_VARIABLE, ConfinedProcess, start_confined
from .landlock import RENAME_ABI, SCOPE_ABI, TCP_ABI, TRUNCATE_ABI, restrict_files
from .outcome import Outcome
from .process_tree import kill_tree
from .seccomp import install_filter

__all__ = ["ConfinedProcess", "Measure", "Outcome", "confine", "kill_tree", "protect", "start_confined"]

Measure = IsolationMeasure

FILE_BYTES = 4 << 30
"""Largest file that a confined process can write; Triton's and Inductor's are below 100 MiB."""
EXTRA_TASKS = 4096
"""Processes and threads that the user may have more than now: torch, OpenMP and CUDA start about three threads a core."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 4, 24, 38, 47  # of linux/prctl.h
_PR_CAP_AMBIENT_CLEAR_ALL, _PR_SET_CHILD_SUBREAPER = 4, 36
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522  # of linux/capability.h
_CAP_DAC_READ_SEARCH = 2
_SIGKILL = 9

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
        ("process_group", _lead_a_session),
        ("parent_death", _end_with_parent),
        ("children_kept", _keep_children),
        ("descriptors", lambda: _close_others(descriptors)),
        ("core_dumps", _dump_no_core),
        ("oom_victim", lambda: _write("/proc/self/oom_score_adj", "1000")),
        ("scratch_folder", lambda: _move_to(scratch)),
        ("memory_limit", lambda: _limit_memory(memory_bytes, gpu)),
        ("cpu_limit", lambda: _limit_seconds(seconds)),
        ("file_size_limit", lambda: _limit(resource.RLIMIT_FSIZE, FILE_BYTES)),
        ("task_limit", _limit_tasks),
        ("capabilities", _drop_capabilities),
        ("no_new_privileges", lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1)),
    ]
    measures = [_apply(name, step) for name, step in steps]
    landlock = _restrict(threads, allowed, [scratch, *writable, *([_own_tasks()] if gpu else ())], devices)
    measures += landlock
    scoped = any(measure.name == "landlock_signals" and measure.active for measure in landlock)
    return [*measures, _apply("seccomp", lambda: install_filter(signals_scoped=scoped))]


def protect() -> Measure:
    """Hide this trusted process: a process of the same user can then neither trace it nor read its memory, environment and open files."""
    return _apply("hidden_memory", lambda: _prctl(_PR_SET_DUMPABLE, 0))


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


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="ascii")


def _lead_a_session() -> str | None:
    return None if os.getsid(0) == os.getpid() else "the process shares its session with others; start it by start_confined"


def _end_with_parent() -> str | None:
    parent = os.environ.pop(PARENT_VARIABLE, "")
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if parent and parent != str(os.getppid()):
        raise SystemExit("the process that started this one has ended")
    return None if parent else "the process that started this one is unknown; start it by start_confined"


def _keep_children() -> None:
    """Ended children, and those of ended children, wait for this process to ask for them: until then their CPU time can be read."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _close_others(keep: Collection[int] | None) -> str | None:
    if keep is None:
        return "trusted to the caller"
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor not in keep:
            with suppress(OSError):
                os.close(descriptor)
    return None


def _dump_no_core() -> None:
    _limit(resource.RLIMIT_CORE, 0)
    _write("/proc/self/coredump_filter", "0")  # a limit of 0 does not stop a dump that a program collects


def _move_to(scratch: Path) -> None:
    os.umask(0o077)
    os.chdir(scratch)
    os.environ.update(scratch_environment(scratch))
    tempfile.tempdir = str(scratch)


def scratch_environment(scratch: Path) -> dict[str, str]:
    """The variables that lead every cache and temporary file to `scratch`."""
    folders = {
        "HOME": scratch, "TMPDIR": scratch, "XDG_CACHE_HOME": scratch / "cache",
        "TRITON_HOME": scratch, "TRITON_CACHE_DIR": scratch / "triton",
        "TORCHINDUCTOR_CACHE_DIR": scratch / "inductor", "TORCH_EXTENSIONS_DIR": scratch / "extensions",
        "CUDA_CACHE_PATH": scratch / "cuda", "CUDA_MPS_PIPE_DIRECTORY": scratch / "mps",
    }  # fmt: skip
    return {name: str(path) for name, path in folders.items()}


def _limit(kind: int, value: int, hard: int | None = None) -> None:
    _, most = resource.getrlimit(kind)
    hard = value if hard is None else hard
    if most != resource.RLIM_INFINITY:
        value, hard = min(value, most), min(hard, most)
    resource.setrlimit(kind, (value, hard))


def _limit_memory(memory_bytes: int | None, gpu: bool) -> str | None:
    if memory_bytes is None:
        return "no limit was asked for"
    if gpu:
        return "the CUDA driver reserves more memory than it uses; the starting process watches the memory in use"
    # Not the address space: torch maps gigabytes of libraries that are never loaded.
    _limit(resource.RLIMIT_DATA, memory_bytes)
    return None


def _limit_seconds(seconds: int | None) -> str | None:
    if seconds is None:
        return "no limit was asked for"
    budget = max(1, seconds) * (os.cpu_count() or 1)
    _limit(resource.RLIMIT_CPU, budget, budget + 5)
    return None


def _limit_tasks() -> str | None:
    user, tasks = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        with suppress(OSError):
            if folder.stat().st_uid == user:
                tasks += sum(1 for _ in folder.iterdir())
    _limit(resource.RLIMIT_NPROC, tasks + EXTRA_TASKS)
    return "the kernel does not count root's processes; the starting process watches their number" if user == 0 else None


def _drop_capabilities() -> str | None:
    """Drop all capabilities but reading, without which root cannot open a project that belongs to someone else."""
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        return f"not written for {os.uname().machine}"
    held = next(int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapPrm"))
    kept = held & (1 << _CAP_DAC_READ_SEARCH)
    library = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if library.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # no right to, which no_new_privs makes up for, or past the last one
    library.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    sets = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)  # effective, permitted, inheritable; lower and upper halves
    library.syscall.restype = ctypes.c_long
    if library.syscall(ctypes.c_long(number), ctypes.byref(header), ctypes.byref(sets)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return None
