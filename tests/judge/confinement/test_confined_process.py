"""The parent's side of a confined process: how it ended is told rightly, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from fusebench.judge.confinement import confined_process, tree_usage
from fusebench.judge.confinement.confined_process import OUTPUT_BYTES, ConfinedProcess, start_confined
from fusebench.judge.confinement.outcome import Cause, Outcome, signal_name
from fusebench.judge.confinement.process_tree import ORIGIN_VARIABLE, kill_starter, remove_folder

CONFINE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from fusebench.judge.confinement.isolation import confine
confine(Path.cwd(), readable=[], writable=[], memory_bytes=256 << 20, seconds=60, gpu=False, descriptors=[])
"""
DAEMON = """
for _ in range(2):
    if os.fork():
        break
    os.setsid()
else:
    Path("daemon").write_text(str(os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)
"""


def start(code: str, scratch: Path, **options: object) -> ConfinedProcess:
    return start_confined([sys.executable, "-c", code], scratch=scratch, **options)  # type: ignore[arg-type]


def end(code: str, scratch: Path, **options: object) -> Outcome:
    outcome = start(code, scratch, **options).wait(60)
    assert outcome is not None
    return outcome


def until(condition: object) -> None:
    """Wait for a true value of `condition()`; fail after a time that no slow machine needs."""
    give_up = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < give_up
        time.sleep(0.01)


def read_pid(path: Path) -> int:
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


@pytest.mark.parametrize(
    ("code", "cause", "exit_code", "name"),
    [
        ("raise SystemExit(7)", Cause.EXITED, 7, None),
        ("import os; os._exit(0)", Cause.EXITED, 0, None),
        ("import ctypes; ctypes.string_at(0)", Cause.SIGNAL, None, "SIGSEGV"),
        ("import os; os.abort()", Cause.SIGNAL, None, "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Cause.SIGNAL, None, "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)", Cause.HUNG, None, None),
    ],
)
def test_an_end_has_its_cause(tmp_path: Path, code: str, cause: Cause, exit_code: int | None, name: str | None) -> None:
    outcome = end(code, tmp_path)
    assert (outcome.cause, outcome.exit_code, outcome.signal) == (cause, exit_code, name)
    assert outcome.describe()


ENDED = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
import ctypes
ctypes.CDLL(None).prctl(36, 0)
def burn():
    while time.process_time() < 0.25: pass
    os._exit(0)
if HOW == "waited":
    if not (child := os.fork()): burn()
    try: os.waitpid(child, 0)
    except ChildProcessError: pass
elif HOW == "left":
    if not os.fork(): burn()
elif not os.fork():
    if not os.fork(): burn()
    os._exit(0)
Path("ready").write_text("")
time.sleep(60)
"""
"""A child that computes and ends: waited for, left alone, or the child of one that ended before."""


@pytest.mark.parametrize("how", ["waited", "left", "orphaned"])
def test_time_of_children_that_have_ended_counts(tmp_path: Path, how: str) -> None:
    """Planted: the process asks that its children vanish at their end."""
    process = start(CONFINE + f"HOW = {how!r}" + ENDED, tmp_path)
    until((tmp_path / "ready").exists)
    alone = ~process.pid << 3 | 2
    until(lambda: process.cpu_ns() > time.clock_gettime_ns(alone) + 200e6)
    time.sleep(0.3)  # a child that still computes would end meanwhile
    assert process.cpu_ns() > time.clock_gettime_ns(alone) + 200e6
    assert process.kill().survivors == ()


def test_memory_files_that_are_mapped_nowhere_count(tmp_path: Path) -> None:
    code = "import os, time\nfd = os.memfd_create('x')\nos.write(fd, bytes(1 << 26))\ntime.sleep(60)"
    assert end(code, tmp_path, memory_bytes=48 << 20).cause is Cause.OUT_OF_MEMORY
    given = os.memfd_create("given")
    os.write(given, bytes(1 << 26))
    process = start("import time\ntime.sleep(60)", tmp_path, memory_bytes=48 << 20, pass_descriptors=[given])
    assert process.wait(1.5) is None, "memory that it was lent is not its own"
    process.kill()
    os.close(given)


def test_time_of_children_counts_and_a_paused_tree_uses_none(tmp_path: Path) -> None:
    process = start("import os\nos.fork()\nopen('ready', 'a').write('.')\nwhile True: pass", tmp_path)
    until(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").stat().st_size == 2)
    alone = ~process.pid << 3 | 2
    until(lambda: process.cpu_ns() > time.clock_gettime_ns(alone) + 20e6)
    process.pause()
    before = process.cpu_ns()
    time.sleep(0.05)
    assert process.cpu_ns() == before
    process.resume()
    until(lambda: process.cpu_ns() > before)
    process.pause()
    assert process.kill().survivors == ()


def test_an_endless_loop_hangs_and_ends(tmp_path: Path) -> None:
    process = start("while True: pass", tmp_path, deadline=time.monotonic() + 0.2)
    outcome = process.wait(60)
    assert outcome is not None
    assert outcome.cause is Cause.HUNG
    assert not psutil.pid_exists(process.pid)


def test_a_flood_of_output_neither_blocks_nor_fills(tmp_path: Path) -> None:
    code = "import os\nos.write(1, b'first')\nfor _ in range(1024): os.write(2, b'x' * (1 << 20))\nos.write(1, b'last\\xff')"
    outcome = end(code, tmp_path)
    assert outcome.exit_code == 0
    assert outcome.output.startswith("first")
    assert outcome.output.endswith("last\ufffd")
    assert f"{(1 << 30) + 10 - OUTPUT_BYTES} bytes left out" in outcome.output
    assert len(outcome.output) < OUTPUT_BYTES + 100


def test_a_memory_bomb_raises_in_a_confined_process(tmp_path: Path) -> None:
    outcome = end(CONFINE + "kept = [bytearray(32 << 20) for _ in range(64)]", tmp_path)
    assert "MemoryError" in outcome.output
    assert outcome.exit_code == 1


@pytest.mark.parametrize("who", ["first", "child"])
def test_memory_of_the_whole_tree_is_watched(tmp_path: Path, who: str) -> None:
    fork = "os.fork() and os.wait()\n" if who == "child" else ""
    code = "import os, time\n" + fork + "kept = [b'x' * (16 << 20) for _ in range(16)]\ntime.sleep(60)"
    outcome = end(code, tmp_path, memory_bytes=200 << 20)
    assert outcome.cause is Cause.OUT_OF_MEMORY
    assert outcome.peak_bytes > 200 << 20


def test_memory_that_forks_share_counts_once(tmp_path: Path) -> None:
    code = "import os, time\nkept = b'x' * (64 << 20)\nfor _ in range(7):\n    if not os.fork(): break\ntime.sleep(1.2)"
    outcome = end(code, tmp_path, memory_bytes=250 << 20)
    assert outcome.cause is Cause.EXITED
    assert outcome.peak_bytes > 64 << 20


@pytest.mark.parametrize(
    ("limit", "value", "cause"),
    [
        ("SPARE_SHARE", 1.0, Cause.OUT_OF_MEMORY),
        ("MOST_PROCESSES", 0, Cause.TOO_MANY_PROCESSES),
        ("SCRATCH_BYTES", 1000, Cause.DISK_FULL),
        ("SCRATCH_FILES", 0, Cause.DISK_FULL),
        ("FLOOD_BYTES", 3, Cause.FLOODED),
    ],
)
def test_the_tree_ends_when_it_outgrows_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, cause: Cause
) -> None:
    monkeypatch.setattr(tree_usage if limit.startswith("SCRATCH") else confined_process, limit, value)
    outcome = end("import time\nprint('flood', flush=True)\nopen('big', 'wb').write(bytes(1 << 20))\ntime.sleep(60)", tmp_path)
    assert outcome.cause is cause


@pytest.mark.parametrize("prologue", [CONFINE, "import os, signal, time\nfrom pathlib import Path\n"], ids=["confined", "free"])
def test_no_daemon_survives(tmp_path: Path, prologue: str) -> None:
    process = start(prologue + "if os.fork() == 0:" + DAEMON.replace("\n", "\n    ") + "\ntime.sleep(60)", tmp_path)
    daemon = read_pid(tmp_path / "daemon")
    outcome = process.kill()
    assert outcome.cause is Cause.STOPPED
    assert outcome.survivors == ()
    until(lambda: not psutil.pid_exists(daemon) or psutil.Process(daemon).status() == psutil.STATUS_ZOMBIE)


def test_a_daemon_does_not_survive_the_exit_of_its_parents(tmp_path: Path) -> None:
    code = CONFINE + DAEMON + "\nwhile not Path('daemon').exists(): time.sleep(0.01)\n"
    assert end(code, tmp_path).cause is Cause.EXITED
    daemon = read_pid(tmp_path / "daemon")
    until(lambda: not psutil.pid_exists(daemon) or psutil.Process(daemon).status() == psutil.STATUS_ZOMBIE)


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    inner = CONFINE + "Path('inner').write_text(str(os.getpid()))\ntime.sleep(60)"
    outer = (
        "import sys, time\nfrom pathlib import Path\nfrom fusebench.judge.confinement.isolation import start_confined\n"
        f"start_confined([sys.executable, '-c', {inner!r}], scratch=Path({str(tmp_path)!r}))\ntime.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(confined_process.__file__).parents[3])}
    with subprocess.Popen([sys.executable, "-c", outer], env=environment) as parent:
        confined = read_pid(tmp_path / "inner")
        parent.send_signal(signal.SIGKILL)
    until(lambda: not psutil.pid_exists(confined) or psutil.Process(confined).status() == psutil.STATUS_ZOMBIE)


def test_what_a_killed_judge_leaves_behind_is_found(tmp_path: Path) -> None:
    inner = CONFINE + "if os.fork() == 0:" + DAEMON.replace("\n", "\n    ") + "\ntime.sleep(60)"
    outer = (
        "import sys, time\nfrom pathlib import Path\nfrom fusebench.judge.confinement.isolation import start_confined\n"
        f"start_confined([sys.executable, '-c', {inner!r}], scratch=Path({str(tmp_path)!r}))\ntime.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(confined_process.__file__).parents[3]), ORIGIN_VARIABLE: "this-test"}
    with subprocess.Popen([sys.executable, "-c", outer], env=environment) as parent:
        daemon = read_pid(tmp_path / "daemon")
        assert kill_starter(parent, "this-test") == -signal.SIGKILL
    until(lambda: not psutil.pid_exists(daemon) or psutil.Process(daemon).status() == psutil.STATUS_ZOMBIE)


def test_secrets_and_descriptors_of_the_parent_stay_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "expected")
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    code = f"import os\nprint('SECRET_TOKEN' in os.environ, os.getsid(0) == os.getpid(), os.getcwd(), flush=True)\nos.fstat({reading})"
    outcome = end(code, tmp_path)
    os.close(reading)
    os.close(writing)
    assert outcome.output.startswith(f"False True {tmp_path}\n")
    assert "Bad file descriptor" in outcome.output


def test_a_protected_process_cannot_be_read(tmp_path: Path) -> None:
    """Both processes give up root's capabilities, which would open every memory; then they are one ordinary user's."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fusebench.judge.confinement.isolation import protect\n"
        "from fusebench.judge.confinement.own_process import drop_capabilities\n"
        "drop_capabilities()\n{protect}\nPath('pid{name}').write_text(str(__import__('os').getpid()))\n{rest}"
    )
    read = "pid = int(sys.argv[1])\ntry: Path(f'/proc/{pid}/mem').open('rb').close(); print('read')\nexcept OSError as error: print(error)"
    said = {}
    for name, protect in {"hidden": "assert protect().active", "open": ""}.items():
        trusted = start(code.format(protect=protect, name=name, rest="time.sleep(60)"), tmp_path)
        pid = read_pid(tmp_path / f"pid{name}")
        attacker = start_confined([sys.executable, "-c", code.format(protect="", name="x", rest=read), str(pid)], scratch=tmp_path)
        outcome = attacker.wait(60)
        trusted.kill()
        assert outcome is not None
        said[name] = outcome.output
    if "read" not in said["open"]:
        pytest.skip(f"this system lets nobody trace: {said['open']}")
    assert "Permission denied" in said["hidden"]


def test_signals_without_a_name_are_told_by_number() -> None:
    assert signal_name(signal.SIGSEGV) == "SIGSEGV"
    assert signal_name(40) == "signal 40"


def test_without_scoped_signals_the_filter_keeps_signals_from_others(tmp_path: Path) -> None:
    """As on kernels with a Landlock before ABI 6."""
    code = (
        "import os, signal\nfrom fusebench.judge.confinement.own_process import forbid_new_privileges\n"
        "from fusebench.judge.confinement.seccomp import install_filter\n"
        "forbid_new_privileges()\ninstall_filter(signals_scoped=False)\nos.kill(os.getpid(), 0)\nos.kill(0, 0)\n"
        "for pid in (os.getppid(), -1, 1):\n    try: os.kill(pid, 0); print('signalled', pid)\n    except PermissionError: pass\n"
    )
    outcome = end(code, tmp_path)
    assert (outcome.exit_code, outcome.output) == (0, "")


def test_triton_keeps_compiled_kernels_where_no_file_may_change_its_folder(tmp_path: Path) -> None:
    """As on kernels with Landlock's first ABI."""
    pytest.importorskip("triton")
    code = (
        "from pathlib import Path\nimport os\nfrom fusebench.judge.confinement import landlock\n"
        "from fusebench.judge.confinement.isolation import confine\n"
        "abi = landlock.landlock_abi()\nlandlock.landlock_abi = lambda: 1\n"
        "confine(Path.cwd(), readable=[], writable=[], memory_bytes=None, seconds=None, gpu=False)\n"
        "from triton.runtime.cache import get_cache_manager\nkept = get_cache_manager('0' * 64)\n"
        "print(Path(kept.put(b'code', 'a.cubin')).read_bytes(), Path(kept.put('text', 'a.ptx', binary=False)).read_text())\n"
        "os.mkdir('other')\ntry: os.rename('triton', 'other/triton'); print('renamed')\nexcept OSError as error: print(error.strerror)"
    )
    outcome = end(code, tmp_path)
    if "Landlock" in outcome.output and outcome.exit_code:
        pytest.skip(outcome.output.splitlines()[-1])
    assert outcome.output == "b'code' text\nInvalid cross-device link\n"


def test_threads_from_before_are_told(tmp_path: Path) -> None:
    code = (
        "import threading, time\nfrom pathlib import Path\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "from fusebench.judge.confinement.isolation import confine\n"
        "for measure in confine(Path.cwd(), readable=[], writable=[], memory_bytes=None, seconds=None, gpu=True):\n"
        "    print(measure.name, measure.reason)"
    )
    said = dict(line.split(" ", 1) for line in end(code, tmp_path).output.splitlines())
    if "the kernel" not in said["landlock_files"]:
        assert said["landlock_files"] == "1 threads existed before and are not confined"
    assert said["memory_limit"] == said["cpu_limit"] == "no limit was asked for"
    assert said["descriptors"] == "trusted to the caller"


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')",
        "os.mkdir('d'); open('d/file', 'w').close(); os.chmod('d', 0)",
        "os.rmdir(os.getcwd())",
    ],
    ids=["deep", "closed", "gone"],
)
def test_every_scratch_folder_can_be_removed(code: str) -> None:
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm"))  # some disks take milliseconds to remove a folder
    assert end("import os\n" + code, scratch).exit_code == 0
    remove_folder(scratch)
    assert not scratch.exists()
