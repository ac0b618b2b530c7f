"""What a hostile kernel file might try, as a program: each attack prints whether it worked, confined or not.

`python attacks.py confined|free TARGETS`, where TARGETS is JSON: `secret` and `victim` (files outside of the scratch folder), `tcp` (port
of a local server), `socket` (path of a UNIX socket), `abstract` (name of an abstract one), `trusted` (pid of a process to attack, whose
memory at `address` holds a secret), `inherited` (an open descriptor that was not given).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def call(x86: int, arm: int, *arguments: object) -> int:
    """A system call by number, as the C library has no wrapper for many.

    Raises:
        OSError: it failed.
    """
    LIBC.syscall.restype = ctypes.c_long
    result = LIBC.syscall(ctypes.c_long(x86 if X86 else arm), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


class IoVector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def read_foreign_memory(pid: int, address: int) -> bool:
    """By process_vm_readv."""
    buffer = ctypes.create_string_buffer(8)
    local, remote = IoVector(ctypes.addressof(buffer), 8), IoVector(address, 8)
    arguments = (ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0))
    return call(310, 270, ctypes.c_int(pid), *arguments) == 8


def read_memory_file(pid: int, address: int) -> bool:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        file.seek(address)
        return file.read(8) == b"expected"


def trace(pid: int) -> bool:
    """PTRACE_ATTACH, and PTRACE_DETACH again."""
    call(101, 117, ctypes.c_long(16), ctypes.c_long(pid), None, None)
    os.waitpid(pid, 0x40000000)  # __WALL
    call(101, 117, ctypes.c_long(17), ctypes.c_long(pid), None, None)
    return True


def own_user_namespace() -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if LIBC.unshare(0x10000000) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def leave_group() -> bool:
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(0 if os.getsid(0) == os.getpid() else 1)
    return os.waitpid(child, 0)[1] == 0


def change_mode(path: str) -> bool:
    before = Path(path).stat().st_mode
    Path(path).chmod(0o640 if before & 0o777 != 0o640 else 0o600)
    return Path(path).stat().st_mode != before


def change_times(path: str) -> bool:
    os.utime(path, (1, 1))
    return Path(path).stat().st_mtime == 1


def connect(family: int, address: object) -> bool:
    with socket.socket(family) as end:
        end.settimeout(2)
        end.connect(address)
    return True


def datagram(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.sendto(b"x", path)
    return True


def listen() -> bool:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        end.listen()
    return True


def limit_foreign(pid: int) -> bool:
    resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))
    return True


def slow_foreign(pid: int) -> bool:
    """Keep the baseline's process on one core, so that the candidate looks fast."""
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return True


def renice(pid: int) -> bool:
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return True


def attacks(target: dict[str, object]) -> dict[str, Callable[[], object]]:
    """By name, in the order of execution; an attack works if it returns a true value, and fails by a false one or an OSError."""
    pid, address = int(str(target["trusted"])), int(str(target["address"]))
    secret, victim, folder = str(target["secret"]), str(target["victim"]), Path(str(target["victim"])).parent
    return {
        "read_secret": lambda: Path(secret).read_text(),
        "list_folder": lambda: next(folder.iterdir()),
        "read_environment": lambda: Path(f"/proc/{pid}/environ").read_bytes(),
        "read_shadow": lambda: Path("/etc/shadow").read_bytes(),
        "write_victim": lambda: Path(victim).write_text("overwritten"),
        "create_beside_victim": lambda: (folder / "created").write_text("x"),
        "truncate_victim": lambda: os.truncate(victim, 0) is None,
        "link_out": lambda: (os.link(secret, "linked"), Path("linked").read_text()),
        "delete_victim": lambda: Path(str(target["doomed"])).unlink() is None,
        "change_mode": lambda: change_mode(secret),
        "change_times": lambda: change_times(secret),
        "shared_memory": lambda: Path(str(target["shared"])).read_bytes(),
        "tcp_connect": lambda: connect(socket.AF_INET, ("127.0.0.1", target["tcp"])),
        "tcp_listen": listen,
        "unix_connect": lambda: connect(socket.AF_UNIX, target["socket"]),
        "unix_datagram": lambda: datagram(str(target["datagram"])),
        "abstract_connect": lambda: connect(socket.AF_UNIX, "\0" + str(target["abstract"])),
        "ptrace": lambda: trace(pid),
        "memory_file": lambda: read_memory_file(pid, address),
        "process_vm_readv": lambda: read_foreign_memory(pid, address),
        "signal": lambda: os.kill(pid, signal.SIGCONT) is None,
        "foreign_limits": lambda: limit_foreign(pid),
        "foreign_affinity": lambda: slow_foreign(pid),
        "foreign_priority": lambda: renice(pid),
        "leave_group": leave_group,
        "inherited_descriptor": lambda: os.read(int(str(target["inherited"])), 8) == b"expected",
        "system_v_memory": lambda: LIBC.shmctl(call(29, 194, 0, ctypes.c_size_t(4096), 0o1600), 0, None) == 0,
        "io_uring": lambda: os.close(call(425, 425, 4, ctypes.create_string_buffer(256))) is None,
        "user_namespace": own_user_namespace,
        "outlive_parent": lambda: LIBC.prctl(1, 0, 0, 0, 0) == 0,
    }


def main() -> None:
    mode, target = sys.argv[1], json.loads(sys.argv[2])
    measures: list[object] = []
    if mode == "confined":
        import msgspec

        from fusebench.judge.confinement.isolation import confine

        scratch = Path.cwd()
        done = confine(scratch, readable=[], writable=[], memory_bytes=2 << 30, seconds=60, gpu=False, descriptors=[])
        measures = msgspec.to_builtins(done)
    results = {}
    for name, attack in attacks(target).items():
        try:
            results[name] = "worked" if attack() else "had no effect"
        except OSError as error:
            results[name] = error.strerror or str(error)
    print(json.dumps({"measures": measures, "results": results}))


if __name__ == "__main__":
    main()
