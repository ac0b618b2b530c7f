"""Seccomp: a filter of system calls for this process and every process that it starts.

It refuses what reaches other processes, the network, the kernel's configuration, or outlives the process.  It is a list of refusals, not a
list of permissions: torch, the CUDA driver, Triton and compilers use hundreds of calls, and Landlock decides about files.  Refused calls
fail with EPERM and kill nothing.  Calls that change modes, owners and times of files, or leave the process group, pretend to succeed and do
nothing: harmless libraries make them, Landlock does not cover them, and killing a group ends whoever could not leave it.

Numbers are those of `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64), the program's format that of `linux/filter.h` and
`linux/seccomp.h`.  libseccomp is not used: it is a system library that many containers lack.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import socket
import sys
from collections.abc import Iterable

_REFUSED = {
    # name: (x86_64, aarch64); None where the architecture lacks it
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "kcmp": (312, 272), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),  # its operations pass no filter
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "syslog": (103, 116),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "iopl": (172, None), "ioperm": (173, None),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "move_mount": (429, 429), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
    "connect": (42, 203),  # a path of a UNIX socket: the host's services (containers, desktop bus, agents)
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),  # outlive the process
    "tkill": (200, 130), "migrate_pages": (256, 238), "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
_PRETENDED = {
    "setsid": (112, 157), "setpgid": (109, 154),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip
_OF_THIS_PROCESS = {
    # the first argument names a process or a thread: only 0, the caller, passes
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "move_pages": (279, 239),
}  # fmt: skip
_SIGACTION = (13, 134)
"""Pretended for SIGCHLD: children of a process that ignores it leave no trace of their CPU time."""
_SIGNALS = {"kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}
_SOCKET, _CLONE, _CLONE3, _PRCTL = (41, 198), (56, 220), (435, 435), (157, 167)
_FCNTL, _IOCTL = (72, 25), (16, 29)
_OWNER_COMMANDS, _OWNER_REQUESTS = (8, 10, 15), (0x8901, 0x8902)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX; FIOSETOWN and SIOCSPGRP."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables above, and AUDIT_ARCH of `linux/audit.h`."""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of `linux/sched.h`: mount, cgroup, UTS, IPC, user, PID and network."""
_CLONE_PARENT = 0x8000
"""The child's end would be nobody's to ask for."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # of linux/bpf_common.h
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data; arguments follow from 16 on, 8 bytes each
_SET_MODE_FILTER, _ALL_THREADS, _SPECULATION = 1, 1 << 0, 1 << 2
_SECCOMP = {"x86_64": 317, "aarch64": 277}

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip if true, if false, and constant."""


def _argument(index: int) -> int:
    return 16 + 8 * index  # its lower half: both architectures are little-endian, and every tested argument is an int


def _refuse(number: int, code: int = errno.EPERM) -> list[Instruction]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | code)]


def _only(number: int, allowed: Iterable[int]) -> list[Instruction]:
    """Refuse the call unless its first argument is one of `allowed`."""
    values = tuple(allowed)
    body: list[Instruction] = [(_LOAD, 0, 0, _argument(0))]
    body += [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    body += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(body), number), *body]


def program(machine: str, pid: int, *, signals_scoped: bool) -> list[Instruction]:
    """The filter for an architecture.

    Args:
        machine: `x86_64` or `aarch64`.
        pid: process that installs it, to which its own children may send signals.
        signals_scoped: whether Landlock already keeps signals among confined processes; if not, a process may signal itself, its group and
            the leader, and not even its children.

    Raises:
        KeyError: another architecture.
    """
    column, audit = _ARCHITECTURES[machine]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),  # 32-bit system calls have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for table, error in ((_REFUSED, errno.EPERM), (_PRETENDED, 0)):
        for numbers in table.values():
            if (number := numbers[column]) is not None:
                code += _refuse(number, error)
    for numbers in _OF_THIS_PROCESS.values():
        code += _only(numbers[column], (0,))
    if not signals_scoped:
        for numbers in _SIGNALS.values():
            code += _only(numbers[column], (0, pid))
    # The owner of an open file gets a signal of choice whenever the file can be read.
    for number, argument, commands in ((_FCNTL[column], 1, _OWNER_COMMANDS), (_IOCTL[column], 1, _OWNER_REQUESTS)):
        code += [(_EQUAL, 0, len(commands) + 3, number), (_LOAD, 0, 0, _argument(argument))]
        code += [(_EQUAL, len(commands) - place, 0, command) for place, command in enumerate(commands)]
        code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    # A path of a datagram socket needs no connect.
    stream_only = [
        (_LOAD, 0, 0, _argument(0)), (_EQUAL, 0, 5, socket.AF_UNIX),
        (_LOAD, 0, 0, _argument(1)), (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, socket.SOCK_STREAM), (_EQUAL, 0, 1, socket.SOCK_SEQPACKET),
        (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM),
    ]  # fmt: skip
    code += [(_EQUAL, 0, len(stream_only), _SOCKET[column]), *stream_only]
    code += _refuse(_CLONE3[column], errno.ENOSYS)  # its flags lie in memory, out of a filter's sight; the C library falls back to clone
    code += [
        (_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _argument(0)), (_ANY_BIT, 0, 1, _NEW_NAMESPACES | _CLONE_PARENT),
        (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    code += [
        (_EQUAL, 0, 5, _PRCTL[column]), (_LOAD, 0, 0, _argument(0)), (_EQUAL, 1, 0, _PR_SET_PDEATHSIG),
        (_EQUAL, 0, 1, _PR_SET_CHILD_SUBREAPER), (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, _SIGACTION[column]), (_LOAD, 0, 0, _argument(0)), (_EQUAL, 0, 1, signal.SIGCHLD),
        (_RETURN, 0, 0, _ERROR), (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    return [*code, (_RETURN, 0, 0, _ALLOW)]


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_Filter))]


def install_filter(*, signals_scoped: bool) -> None:
    """Filter the system calls of all threads of this process, and of what it starts, for ever.  Needs `no_new_privs`.

    The filter switches no mitigation of speculation on: kernels before Linux 5.16 would otherwise slow the process down.

    Raises:
        OSError: the kernel or the architecture does not support it; the message says why.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"no filter is written for {machine}, only for 64-bit {' and '.join(_ARCHITECTURES)}")
    code = program(machine, os.getpid(), signals_scoped=signals_scoped)
    filters = (_Filter * len(code))(*(_Filter(*instruction) for instruction in code))
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    result = library.syscall(
        ctypes.c_long(_SECCOMP[machine]), ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_ALL_THREADS | _SPECULATION),
        ctypes.byref(_Program(len(code), filters)),
    )  # fmt: skip
    if result > 0:
        raise OSError(errno.EBUSY, f"thread {result} has a filter of its own")
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, f"the kernel refuses a filter of system calls: {os.strerror(failed)}")
