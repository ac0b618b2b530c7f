"""What a candidate's process is kept from: each attack works on an ordinary process and fails in a confined one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fusebench.judge.confinement import isolation
from fusebench.judge.confinement.isolation import start_confined
from fusebench.judge.confinement.landlock import landlock_abi

ATTACKS = Path(__file__).with_name("attacks.py")
HELD_BY = {
    "read_secret": "landlock_files", "list_folder": "landlock_files", "read_environment": "landlock_files", "read_shadow": "landlock_files",
    "write_victim": "landlock_files", "create_beside_victim": "landlock_files", "truncate_victim": "landlock_truncate",
    "link_out": "landlock_files", "delete_victim": "landlock_files", "shared_memory": "landlock_files",
    "change_mode": "seccomp", "change_times": "seccomp",
    "tcp_connect": "seccomp", "tcp_listen": "seccomp", "unix_connect": "seccomp", "unix_datagram": "seccomp", "abstract_connect": "seccomp",
    "ptrace": "seccomp", "memory_file": "landlock_files", "process_vm_readv": "seccomp", "signal": "seccomp",
    "foreign_limits": "seccomp", "foreign_affinity": "seccomp", "foreign_priority": "seccomp", "leave_group": "seccomp",
    "inherited_descriptor": "descriptors", "system_v_memory": "seccomp", "io_uring": "seccomp", "user_namespace": "seccomp",
    "outlive_parent": "seccomp",
}  # fmt: skip
"""The measure that stops each attack, or one of them."""
NEEDS_LUCK = {"io_uring", "user_namespace", "read_shadow", "ptrace", "memory_file", "process_vm_readv"}
"""Attacks that some systems refuse to everyone or to all but root."""

TRUSTED = """
import ctypes, sys
buffer = ctypes.create_string_buffer(b"expected")
print(ctypes.addressof(buffer), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, dict[str, object]]]:
    """By mode, `free` and `confined`, the results of all attacks, and the measures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        secret = folder / "id_ed25519"
        trusted = subprocess.Popen([sys.executable, "-c", TRUSTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(trusted.wait)
        assert trusted.stdin is not None
        assert trusted.stdout is not None
        stack.enter_context(trusted.stdin)
        stack.enter_context(trusted.stdout)
        address = int(trusted.stdout.readline())
        shared = Path("/dev/shm") / f"fusebench-test-{os.getpid()}"
        shared.write_text("expected")
        stack.callback(shared.unlink)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(str(folder / "socket"))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0fusebench-test-{os.getpid()}")
        receiver = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        receiver.bind(str(folder / "datagram"))
        for one in (local, abstract):
            one.listen(8)
        found = {}
        for mode in ("confined", "free"):
            secret.write_text("secret")
            (folder / "doomed").write_text("doomed")
            reading, writing = os.pipe()
            os.write(writing, b"expected")
            targets = {
                "secret": str(secret), "victim": str(folder / "victim"), "doomed": str(folder / "doomed"), "shared": str(shared),
                "tcp": server.getsockname()[1], "socket": str(folder / "socket"), "datagram": str(folder / "datagram"),
                "abstract": f"fusebench-test-{os.getpid()}", "trusted": trusted.pid, "address": address, "inherited": reading,
            }  # fmt: skip
            (folder / "victim").write_text("victim")
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # The hostile process is given the descriptor, so that its own closing is tried as well.
            command = [sys.executable, str(ATTACKS), mode, json.dumps(targets)]
            process = start_confined(command, scratch=scratch, pass_descriptors=[reading])
            outcome = process.wait(60)
            os.close(reading)
            os.close(writing)
            assert outcome is not None
            assert outcome.exit_code == 0, outcome.output
            found[mode] = json.loads(outcome.output)
            found[mode]["victim"] = (folder / "victim").read_text()
        yield found


@pytest.mark.parametrize("attack", HELD_BY)
def test_confinement_stops_an_attack_that_works_without_it(outcomes: dict[str, dict[str, dict[str, str]]], attack: str) -> None:
    measures = {measure["name"]: measure for measure in outcomes["confined"]["measures"]}  # type: ignore[index]
    holding = measures[HELD_BY[attack]]
    if not holding["active"]:
        pytest.skip(f"{holding['name']}: {holding['reason']}")
    free = outcomes["free"]["results"][attack]
    if attack in NEEDS_LUCK and free != "worked":
        pytest.skip(f"this system refuses it to everyone: {free}")
    assert free == "worked"
    assert outcomes["confined"]["results"][attack] != "worked"


def test_every_attack_is_listed_with_its_measure(outcomes: dict[str, dict[str, dict[str, str]]]) -> None:
    assert set(outcomes["free"]["results"]) == set(HELD_BY)


def test_files_outside_of_the_scratch_folder_are_unharmed(outcomes: dict[str, dict[str, object]]) -> None:
    assert outcomes["free"]["victim"] == ""
    if all(measure["active"] for measure in outcomes["confined"]["measures"] if measure["name"].startswith("landlock")):  # type: ignore[attr-defined]
        assert outcomes["confined"]["victim"] == "victim"


def test_with_a_gpu_threads_may_be_named_and_nothing_else_in_proc_is_written(tmp_path: Path) -> None:
    """CUDA's driver names its threads in /proc, and gives up where it may not."""
    code = """
import os, sys, threading
from pathlib import Path
from fusebench.judge.confinement.isolation import confine
root = Path(sys.argv[1])
confine(Path.cwd(), readable=[root], writable=[], memory_bytes=None, seconds=None, gpu=True)

def attempt(path):
    try:
        Path(path).write_text("named")
        return "written"
    except OSError as error:
        return error.strerror

def work():
    print(attempt(f"/proc/self/task/{threading.get_native_id()}/comm"), attempt("/proc/sys/kernel/core_pattern"), sep=";", flush=True)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    root = Path(isolation.__file__).parents[3]
    process = start_confined(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); exec({code!r})", str(root)],
        scratch=tmp_path,
        deadline=time.monotonic() + 20,
        memory_bytes=1 << 30,
    )
    first, second = process.wait().output.strip().split(";")
    assert first == "written"
    assert second == "Permission denied" or not _landlocked()


def _landlocked() -> bool:
    try:
        return landlock_abi() > 0
    except OSError:
        return False
