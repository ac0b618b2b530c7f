"""One measurement per device at a time, between runs of fusebench: a file lock, and a note beside it that names the holder.

The lock is the operating system's, so it ends with its process however that ends.  The note (JSON) only explains a refusal and may be out
of date.  Whoever waits leaves a ticket beside it, and tickets are served in their order, so that a server which takes the lock again and
again does not keep it from a run that waits.  Locks lie in the user's cache folder.  Where several users share a machine,
FUSEBENCH_LOCK_DIR names a folder that all of them can write; another user's run also shows as a foreign process (see `idle.py`).
"""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from ..errors import DeviceUnfitError
from .select import Device

if TYPE_CHECKING:
    import filelock

POLL_S = 0.2
TICKET = ".waits-"
"""Stands in the name of a ticket, after the name of the lock and before the time of its writing, which orders tickets."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that took the lock."""

    pid: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    started: float
    """Process start, seconds since the epoch: it distinguishes the holder from a process that reuses its pid."""
    command: str
    since: str
    """Time of locking: UTC, ISO 8601."""
    host: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} since {self.since}: {self.command}"


def lock_folder() -> Path:
    """FUSEBENCH_LOCK_DIR, else `locks` in the user's cache folder."""
    override = os.environ.get("FUSEBENCH_LOCK_DIR")
    if override:
        return Path(override)
    import platformdirs

    # The cache folder, not the runtime folder: the latter differs between a user's login session and cron or CI jobs.
    return platformdirs.user_cache_path("fusebench", appauthor=False) / "locks"


def lock_path(device: Device) -> Path:
    """The lock file of `device`; the holder's note is the same name with `.json`."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in device.lock_key)
    return lock_folder() / f"{safe}.lock"


@contextlib.contextmanager
def device_lock(device: Device, *, wait_s: float = 0.0, on_wait: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold `device` for the body; wait up to `wait_s` seconds for it.

    Raises:
        DeviceUnfitError: another run holds it (the message names it), or the lock folder cannot be written.
    """
    import filelock

    path = lock_path(device)
    note = path.with_suffix(".json")
    lock = filelock.FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if _waiting(path):
                raise filelock.Timeout(str(path))  # it is the turn of whoever came first
            lock.acquire(timeout=0)
        except filelock.Timeout:
            if wait_s <= 0:
                raise
            on_wait(f"waiting up to {wait_s:g} s for {device.name}: held by {_first_of(path, note)}")
            _acquire_in_turn(lock, path, wait_s)
    except filelock.Timeout as error:
        remedy = f"It did not end within {wait_s:g} s: wait longer" if wait_s > 0 else "Wait for it with --wait SECONDS"
        raise DeviceUnfitError(
            f"{device} is in use by another fusebench run: {_first_of(path, note)}. {remedy}, or choose another device with --device."
        ) from error
    except OSError as error:
        raise DeviceUnfitError(
            f"the lock of {device} cannot be taken: {error}; make {path.parent} writable, or set FUSEBENCH_LOCK_DIR to a folder that is"
        ) from error
    try:
        write_note(note)
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def _acquire_in_turn(lock: filelock.BaseFileLock, path: Path, wait_s: float) -> None:
    """Take the lock after everybody who came before; filelock.Timeout after `wait_s` seconds."""
    import filelock

    deadline = time.monotonic() + wait_s
    ticket = path.with_name(f"{path.stem}{TICKET}{time.time_ns():020d}-{os.getpid()}-{threading.get_ident()}")
    write_note(ticket)
    try:
        while True:
            if next(iter(_waiting(path)), ticket) == ticket:
                with contextlib.suppress(filelock.Timeout):
                    lock.acquire(timeout=0)
                    return
            if time.monotonic() >= deadline:
                raise filelock.Timeout(str(path))
            time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
    finally:
        ticket.unlink(missing_ok=True)


def _waiting(path: Path) -> list[Path]:
    """The tickets of the living processes of this host that wait for the lock at `path`, the first one first."""
    found = []
    for ticket in sorted(path.parent.glob(f"{glob.escape(path.stem)}{TICKET}*")):
        if ".json." in ticket.name:  # it is being written
            continue
        holder = read_holder(ticket)
        if holder is not None and is_alive(holder):
            found.append(ticket)
        elif holder is not None and holder.host == platform.node():
            ticket.unlink(missing_ok=True)
    return found


def _first_of(path: Path, note: Path) -> str:
    """Who holds the lock, or is the first of those who wait for it, in words."""
    waiting = _waiting(path)
    return describe_holder(note) if note.exists() or not waiting else f"{read_holder(waiting[0])}, which waits for it"


def wanted_by_others(device: Device) -> bool:
    """Whether another process holds the device's lock, or waits for it: whoever keeps processes on the device should end them."""
    path = lock_path(device)
    notes = [path.with_suffix(".json"), *_waiting(path)]
    holders = [holder for note in notes if (holder := read_holder(note)) is not None]
    return any(holder.pid != os.getpid() and is_alive(holder) for holder in holders)


def read_holder(note: Path) -> Holder | None:
    """The note's content; None without a note, or where the file is not one."""
    try:
        return msgspec.json.decode(note.read_bytes(), type=Holder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def describe_holder(note: Path) -> str:
    """The holder in words, after a check that its process still runs."""
    holder = read_holder(note)
    if holder is None:
        return "its holder left no note"
    if holder.host == platform.node() and not is_alive(holder):
        return f"not by the one that its note names ({holder}), which has ended"
    return str(holder)


def is_alive(holder: Holder) -> bool:
    """Whether the process still runs; False for one of another host, about which only the lock itself tells."""
    import psutil

    if holder.host != platform.node():
        return False
    try:
        # Start times are exact to a clock tick; a reused pid started at least seconds later.
        return abs(psutil.Process(holder.pid).create_time() - holder.started) < 1.0
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def write_note(note: Path) -> None:
    """Write the note that names this process as the holder."""
    import psutil

    holder = Holder(
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        command=shlex.join(sys.argv),
        since=datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
        host=platform.node(),
    )
    draft = note.with_name(f"{note.name}.json.{os.getpid()}")
    draft.write_bytes(msgspec.json.encode(holder))
    draft.replace(note)
