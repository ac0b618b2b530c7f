"""Landlock: deny this process, and every process that it starts, all files, TCP ports and foreign processes except those listed.

No package is used: the bindings on PyPI are young and larger than the three system calls.  Numbers and structures are those of
`include/uapi/linux/landlock.h`; which right exists from which ABI version on stands in the kernel's `userspace-api/landlock.rst`.
Landlock does not cover modes, owners and times of files; `judge.seccomp` does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture since Linux 5.13
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS = (1 << 13) - 1
"""Rights of ABI 1: bits 0 to 12."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule about a single file may hold; the others belong to folders."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _TRUNCATE | _IOCTL_DEV
_TCP = 1 << 0 | 1 << 1
"""Bind and connect."""
_SCOPES = 1 << 0 | 1 << 1
"""Abstract UNIX sockets and signals stay among confined processes."""

RENAME_ABI, TRUNCATE_ABI, TCP_ABI, IOCTL_ABI, SCOPE_ABI = 2, 3, 4, 5, 6


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64), ("handled_access_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def _call(number: int, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    result = int(library.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def landlock_abi() -> int:
    """Version of Landlock that the kernel offers, at least 1.

    Raises:
        OSError: there is none; the message says why.
    """
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError as error:
        known = {errno.ENOSYS: "the kernel has no Landlock (Linux 5.13 or later has)", errno.EOPNOTSUPP: "Landlock is disabled at boot"}
        raise OSError(error.errno, known.get(error.errno or 0, f"Landlock is not available: {error.strerror}")) from None


def restrict_files(*, readable: Iterable[Path], writable: Iterable[Path], devices: Iterable[Path]) -> int:
    """Confine the calling thread, and what it starts, for ever; the returned ABI version says to what.

    Call it while the process has one thread, after `no_new_privs`.  Paths that do not exist are skipped.

    Args:
        readable: files and folders that may be read and executed.
        writable: files and folders in which anything regular may be done; no device nodes can be made.
        devices: device files that may be read, written and controlled.
    """
    abi = landlock_abi()
    handled = (
        _FIRST_RIGHTS
        | (_REFER if abi >= RENAME_ABI else 0)
        | (_TRUNCATE if abi >= TRUNCATE_ABI else 0)
        | (_IOCTL_DEV if abi >= IOCTL_ABI else 0)
    )
    ruleset = _Ruleset(handled, _TCP if abi >= TCP_ABI else 0, _SCOPES if abi >= SCOPE_ABI else 0)
    size = 8 if abi < TCP_ABI else 16 if abi < SCOPE_ABI else 24
    descriptor = _call(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    make_device = 1 << 6 | 1 << 11
    try:
        for paths, rights in ((readable, _READ), (writable, handled & ~make_device & ~_IOCTL_DEV), (devices, _DEVICE)):
            for path in paths:
                _allow(descriptor, path, rights & handled)
        _call(_RESTRICT_SELF, ctypes.c_int(descriptor), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
    return abi


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # absent, or hidden from this user already
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = _PathBeneath(rights, descriptor)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
