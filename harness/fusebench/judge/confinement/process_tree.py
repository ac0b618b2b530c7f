"""End a process with all that it started, and remove what it wrote."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

MARK_VARIABLE = "FUSEBENCH_CONFINED"
"""Set for the process, at random, and inherited by what it starts, which is found by it after it lost its parents."""
ORIGIN_VARIABLE = "FUSEBENCH_EVALUATOR"
"""The same, set once for a process that starts confined ones: by it they are found after that process was killed."""


def kill_tree(
    process: subprocess.Popen[bytes], mark: str = "", seen: Mapping[int, float] | None = None, patience_s: float = 5.0
) -> tuple[int, ...]:
    """Kill a process that leads its session and everything that it started, and reap it.

    Under seccomp no descendant can leave the process group, and one signal ends all.  Elsewhere descendants are found by their parents,
    their session and group, their mark, and `seen`; one escapes that left the session, lost its parent, erased its mark and was never seen.

    Args:
        process: the first process; it must not have been reaped by anyone else.
        mark: value of `MARK_VARIABLE` in its environment.
        seen: pid and start time of descendants that were seen, by which they are found after they lost their parents.
        patience_s: seconds until the rest is given up.

    Returns:
        Processes that are still there.
    """
    end = time.monotonic() + patience_s
    while True:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        living = list(_descendants(process.pid, mark, seen or {}))
        for member in living:
            with suppress(psutil.Error):
                member.kill()
        # The first process is reaped last: until then nobody else can get its number.
        if not living and has_ended(process.pid):
            process.wait()
            return ()
        if time.monotonic() > end:
            return tuple(sorted({*(member.pid for member in living), *(() if has_ended(process.pid) else (process.pid,))}))
        time.sleep(0.01)


def kill_starter(process: subprocess.Popen[bytes], origin: str, patience_s: float = 5.0) -> int:
    """Kill a trusted process that starts confined ones, and what these started; returns its exit status.

    Confined processes end with it, but not what they started: that is found by its `ORIGIN_VARIABLE`, unless it erased its environment.
    """
    process.kill()
    status = process.wait()
    marking, end = f"{ORIGIN_VARIABLE}={origin}".encode(), time.monotonic() + patience_s
    while (left := [pid for pid in psutil.pids() if _has_variable(pid, marking)]) and time.monotonic() < end:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return status


def has_ended(child: int) -> bool:
    """Whether a child process has ended, reaped or not; it is not reaped here."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _descendants(leader: int, mark: str, seen: Mapping[int, float]) -> Iterable[psutil.Process]:
    """Living processes of the leader's group or session, marked and seen ones, and all their descendants; not zombies, not the leader."""
    marking = f"{MARK_VARIABLE}={mark}".encode() if mark else None
    found: dict[int, psutil.Process] = {}
    for member in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            pid = member.pid
            known = pid in seen and seen[pid] == member.create_time()
            if known or leader in (pid, os.getsid(pid), os.getpgid(pid)) or _has_variable(pid, marking):
                found[pid] = member
                found |= {child.pid: child for child in member.children(recursive=True)}
    for pid, member in found.items():
        with suppress(psutil.Error):
            if pid != leader and member.status() != psutil.STATUS_ZOMBIE:
                yield member


def _has_variable(pid: int, text: bytes | None) -> bool:
    """Whether a process was started with a variable, given as `NAME=value`."""
    with suppress(OSError):
        return text is not None and text in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def remove_folder(folder: Path) -> None:
    """Remove a scratch folder, whatever was made in it: also closed folders, and nesting deeper than Python recurses or a path may be.

    Inner folders move to the top one before they are emptied, so that no path is long.
    """
    name, number, left = secrets.token_hex(8), 0, [folder]
    while left:
        place = left.pop()
        with suppress(OSError):
            place.chmod(0o700)
            for inner in list(place.iterdir()):
                if inner.is_symlink() or not inner.is_dir():
                    inner.unlink()
                    continue
                inner.chmod(0o700)
                left.append(inner.rename(folder / f"{name}-{number}"))
                number += 1
            if place != folder:
                place.rmdir()
    with suppress(OSError):
        folder.rmdir()
