"""The measures that a process takes on itself before it imports a kernel file that nobody trusts: what it inherited, what it may use, its
rights and its scratch folder.

Each function takes one measure, with or without root, and changes nothing outside of the process. It returns or raises the reason where the
measure is not active. `isolation` applies them in order and reports them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .confined_process import PARENT_VARIABLE

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


def forbid_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    _prctl(_PR_SET_DUMPABLE, 0)


def become_oom_victim() -> None:
    """Where memory runs out, the system ends this process before any other."""
    _write("/proc/self/oom_score_adj", "1000")


def limit_file_size() -> None:
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="ascii")


def lead_a_session() -> str | None:
    return None if os.getsid(0) == os.getpid() else "the process shares its session with others; start it by start_confined"


def end_with_parent() -> str | None:
    parent = os.environ.pop(PARENT_VARIABLE, "")
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if parent and parent != str(os.getppid()):
        raise SystemExit("the process that started this one has ended")
    return None if parent else "the process that started this one is unknown; start it by start_confined"


def keep_children() -> None:
    """Ended children, and those of ended children, wait for this process to ask for them: until then their CPU time can be read."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def close_others(keep: Collection[int] | None) -> str | None:
    if keep is None:
        return "trusted to the caller"
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor not in keep:
            with suppress(OSError):
                os.close(descriptor)
    return None


def dump_no_core() -> None:
    _limit(resource.RLIMIT_CORE, 0)
    _write("/proc/self/coredump_filter", "0")  # a limit of 0 does not stop a dump that a program collects


def move_to(scratch: Path) -> None:
    os.umask(0o077)
    os.chdir(scratch)
    os.environ.update(scratch_environment(scratch))
    tempfile.tempdir = str(scratch)


def scratch_environment(scratch: Path) -> dict[str, str]:
    """The variables that lead every cache and temporary file to `scratch`."""
    folders = {
        "HOME": scratch, "TMPDIR": scratch, "XDG_CACHE_HOME": scratch / "cache", "FUSEBENCH_CACHE_DIR": scratch / "fusebench",
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


def limit_memory(memory_bytes: int | None, gpu: bool) -> str | None:
    if memory_bytes is None:
        return "no limit was asked for"
    if gpu:
        return "the CUDA driver reserves more memory than it uses; the starting process watches the memory in use"
    # Not the address space: torch maps gigabytes of libraries that are never loaded.
    _limit(resource.RLIMIT_DATA, memory_bytes)
    return None


def limit_seconds(seconds: int | None) -> str | None:
    if seconds is None:
        return "no limit was asked for"
    budget = max(1, seconds) * (os.cpu_count() or 1)
    _limit(resource.RLIMIT_CPU, budget, budget + 5)
    return None


def limit_tasks() -> str | None:
    user, tasks = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        with suppress(OSError):
            if folder.stat().st_uid == user:
                tasks += sum(1 for _ in folder.iterdir())
    _limit(resource.RLIMIT_NPROC, tasks + EXTRA_TASKS)
    return "the kernel does not count root's processes; the starting process watches their number" if user == 0 else None


def drop_capabilities() -> str | None:
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
