"""What a tree of processes uses, by the system's account: CPU time, memory, memory files, and what lies in its scratch folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

SCRATCH_BYTES = 2 << 30
"""Most that the scratch folder may hold."""
SCRATCH_FILES = 100_000
"""Most files and folders in it; looking through so many takes half a second."""
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of Linux' posix-timers_types.h: the clock of another process's CPU time, as clock_getcpuclockid(3) builds it."""


def group_members(leader: int) -> list[int]:
    """The processes of a process group."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208  a few hundred names, several times a batch
        with suppress(OSError, ValueError):
            if os.getpgid(int(name)) == leader:
                found.append(int(name))
    return found


def group_cpu_ns(leader: int) -> int:
    """CPU time that the processes of a group and their ended children have used, by the kernel's account; 0 once all have ended.

    An ended child counts until its parent asks for it, and then, in steps of `_TICK_NS`, as the parent's.  Where `isolation` keeps
    children, nobody else can ask.
    """
    total = 0
    for pid in group_members(leader):
        with suppress(OSError):
            total += time.clock_gettime_ns(~pid << 3 | _PROCESS_CLOCK)
        with suppress(OSError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            total += (int(stat[13]) + int(stat[14])) * _TICK_NS
    return total


def out_of_memory_kills() -> int:
    """Processes that the kernel has killed since boot because memory ran out; 0 where it does not count them."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def resident_bytes(process: psutil.Process, *, shared: bool) -> int:
    """Memory in use; with `shared`, pages of several processes count in part for each, as forks share most."""
    with suppress(OSError, StopIteration):
        if shared:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def memory_files(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Device and number of each memory file that a process holds open, with its bytes, which are resident only where they are mapped."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  twice a second
            with suppress(OSError):
                if os.readlink(f"{folder}/{name}").startswith("/memfd:"):  # noqa: PTH115
                    found = os.stat(f"{folder}/{name}")  # noqa: PTH116
                    yield (found.st_dev, found.st_ino), found.st_blocks * 512


def runs(pid: int) -> bool:
    """Whether a thread of this process may run code of its own: not stopped (T, t), ended (Z, X) or deep in the kernel (D)."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  after every request
            with suppress(OSError):  # a thread that has just ended
                if Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"TtZXD":
                    return True
    return False


def outgrown(folder: Path) -> bool:
    """Whether a folder holds more bytes on disk, or more files, than a scratch folder may; links are not followed."""
    total, count, folders = 0, 0, [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                count += 1
                if total > SCRATCH_BYTES or count > SCRATCH_FILES:
                    return True
    return False
