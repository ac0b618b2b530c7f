"""Start a process that confines itself, watch what it takes, and kill all of it.

The watch ends the whole tree at a deadline, and when its memory, its number of processes or its scratch folder outgrow their limits.  A
reader keeps the beginning and the end of its output and throws the rest away, so that a flood neither blocks nor fills anything.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from .outcome import Cause, Outcome, signal_name
from .process_tree import MARK_VARIABLE, ORIGIN_VARIABLE, has_ended, kill_tree
from .tree_usage import group_cpu_ns, group_members, memory_files, out_of_memory_kills, outgrown, resident_bytes, runs

PARENT_VARIABLE = "FUSEBENCH_PARENT_PID"
"""Set for the process: whose end ends it."""
POLL_S = 0.1
"""Seconds between two looks at the first process; a memory bomb fills 1 to 2 GiB meanwhile."""
TREE_EVERY = 5
"""Looks at the first process per look at its descendants and its scratch folder, which cost more."""
OUTPUT_BYTES = 64 << 10
"""Bytes of output kept, half of them from its end."""
FLOOD_BYTES = 2 << 30
"""Bytes of output after which the process is killed: keeping up with more costs the time of others."""
MOST_PROCESSES = 256
"""Processes of one tree; Inductor with its compilers starts fewer than 100."""
SPARE_SHARE = 0.02
"""The tree is killed while less than this share of the machine's memory is available: memory held by no process, such as a memfd, shows
nowhere else."""
STOP_S = 1.0
"""Longest wait until a paused tree stands still, which takes some 20 us unless a thread is inside a long call of the kernel."""
_PASSED = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "CC", "CXX", "CPATH", "LIBRARY_PATH",
    ORIGIN_VARIABLE, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)  # fmt: skip
"""Variables that the process inherits. Everything else, tokens among them, stays here."""


class _Output:
    """Keeps both ends of a stream of bytes."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._start, self._end, self._dropped = bytearray(), bytearray(), 0
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        with self._lock:
            room = self._half - len(self._start)
            self._start += data[:room]
            self._end += data[room:]
            excess = len(self._end) - self._half
            if excess > 0:
                del self._end[:excess]
                self._dropped += excess

    @property
    def nbytes(self) -> int:
        """Bytes seen so far, kept or not."""
        return len(self._start) + len(self._end) + self._dropped

    def text(self) -> str:
        with self._lock:
            gap = f"\n[{self._dropped} bytes left out]\n".encode() if self._dropped else b""
            return bytes(self._start + gap + self._end).decode("utf-8", "replace")


class ConfinedProcess:
    """A process in a session of its own, watched until it ends.

    The thread that starts it must live as long as it does: the kernel ends the process with that thread (PR_SET_PDEATHSIG).
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        mark: str,
        *,
        folder: Path,
        memory_bytes: int | None,
        deadline: float | None,
        output_bytes: int,
        lent: Collection[tuple[int, int]] = (),
    ) -> None:
        """`lent`: device and number of memory files that it was given, which are not its own."""
        self._process, self._mark, self._folder, self._memory_bytes, self._deadline = process, mark, folder, memory_bytes, deadline
        self._output = _Output(output_bytes)
        self._cause: Cause | None = None
        self._peak = self._files_bytes = 0
        self._survivors: tuple[int, ...] = ()
        self._seen: dict[int, float] = {}
        self._kills_before = out_of_memory_kills()
        self._lent = lent
        self._ended = threading.Event()
        self._change = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="confined-output", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="confined-watch", daemon=True)
        self._reader.start()
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Of the process, its session and its process group."""
        return self._process.pid

    def output(self) -> str:
        """Beginning and end of what it has printed so far."""
        return self._output.text()

    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """How it ended, once nothing of the tree is left; None if it still runs after `timeout` seconds."""
        return self._outcome() if self._ended.wait(timeout) else None

    def kill(self, cause: Cause = Cause.STOPPED) -> Outcome:
        """Kill the whole tree, unless it has ended, and tell how it ended."""
        with self._change:
            if not self._ended.is_set():
                if not has_ended(self.pid):
                    self._cause = self._cause or cause
                self._finish()
        return self._outcome()

    def pause(self) -> None:
        """Stop the tree until `resume`: nothing of it runs while others are timed, or while the judge reads what it left.

        A signal stops a process on another core some microseconds later, so this waits for every thread.  It gives up after `STOP_S`: a
        thread that is inside the kernel for so long stops before it runs code of its own again.
        """
        self._signal(signal.SIGSTOP)
        give_up = time.monotonic() + STOP_S
        while self.running() and any(map(runs, group_members(self.pid))) and time.monotonic() < give_up:
            time.sleep(1e-5)

    def resume(self) -> None:
        """Let the tree run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with self._change, suppress(ProcessLookupError, PermissionError):
            if not self._ended.is_set():  # afterwards the group's number may be another's
                os.killpg(self.pid, number)

    def cpu_ns(self) -> int:
        """CPU time that the processes of the group and their ended children have used, by the kernel's account; 0 once all have ended."""
        return group_cpu_ns(self.pid)

    def _finish(self) -> None:
        """Kill what is left, reap it, and collect the last output."""
        self._survivors = kill_tree(self._process, self._mark, self._seen)
        self._reader.join(1.0)
        if not self._reader.is_alive() and self._process.stdout is not None:  # a survivor may hold the pipe open
            self._process.stdout.close()
        if self._cause is None and self._process.returncode == -signal.SIGKILL and out_of_memory_kills() > self._kills_before:
            self._cause = Cause.OUT_OF_MEMORY
        elif self._cause is None and self._process.returncode == -signal.SIGXCPU:
            self._cause = Cause.HUNG
        self._ended.set()

    def _outcome(self) -> Outcome:
        code = self._process.returncode
        cause = self._cause or (Cause.SIGNAL if code is not None and code < 0 else Cause.EXITED)
        return Outcome(
            cause=cause,
            exit_code=code if cause is Cause.EXITED else None,
            signal=signal_name(-code) if cause is Cause.SIGNAL and code is not None else None,
            output=self._output.text(), peak_bytes=self._peak, survivors=self._survivors,
        )  # fmt: skip

    def _read(self) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with suppress(OSError, ValueError):
            while data := os.read(descriptor, 1 << 16):
                self._output.add(data)

    def _watch(self) -> None:
        turn, cause = 0, Cause.STOPPED
        try:
            while not self._ended.wait(POLL_S) and not has_ended(self.pid):
                if (found := self._excess(turn % TREE_EVERY == 0)) is not None:
                    cause = found
                    break
                turn += 1
        finally:  # a process that cannot be watched does not run
            self.kill(cause)

    def _excess(self, whole_tree: bool) -> Cause | None:
        """The limit that the tree has passed, if any."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            return Cause.HUNG
        if self._output.nbytes > FLOOD_BYTES:
            return Cause.FLOODED
        first = psutil.Process(self.pid) if psutil.pid_exists(self.pid) else None
        members = [] if first is None else [first]
        if first is not None and whole_tree:
            with suppress(psutil.Error):
                members += first.children(recursive=True)
            for member in members:
                with suppress(psutil.Error):
                    self._seen[member.pid] = member.create_time()
            if len(members) > MOST_PROCESSES:
                return Cause.TOO_MANY_PROCESSES
            if outgrown(self._folder):
                return Cause.DISK_FULL
            memory = psutil.virtual_memory()
            if memory.available < SPARE_SHARE * memory.total:
                return Cause.OUT_OF_MEMORY
            files = {key: size for member in members for key, size in memory_files(member.pid)}
            self._files_bytes = sum(size for key, size in files.items() if key not in self._lent)
        resident = sum(resident_bytes(member, shared=len(members) > 1) for member in members)
        self._peak = max(self._peak, resident + self._files_bytes)
        return Cause.OUT_OF_MEMORY if self._memory_bytes is not None and self._peak > self._memory_bytes else None


def start_confined(
    command: Sequence[str],
    *,
    scratch: Path,
    pass_descriptors: Collection[int] = (),
    environment: Mapping[str, str] | None = None,
    memory_bytes: int | None = None,
    deadline: float | None = None,
    output_bytes: int = OUTPUT_BYTES,
) -> ConfinedProcess:
    """Start `command`, which calls `isolation.confine` before it does anything else.

    It leads a new session and process group, has an empty stdin and a clean environment, and starts in `scratch`.  It inherits only the
    named descriptors.

    Args:
        command: program and arguments. No secrets: everyone can read them.
        scratch: existing folder.
        pass_descriptors: open files that it inherits under the same numbers.
        environment: variables beside those that pass anyway; no secrets.
        memory_bytes: most memory resident in the whole tree; None for no limit.
        deadline: in seconds of `time.monotonic()`, when the tree is killed as hung; None for never.
        output_bytes: most output that is kept.
    """
    variables = {name: os.environ[name] for name in _PASSED if name in os.environ}
    variables |= {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    # Absolute, since the working folder changes; with this package's own folder, which the caller may have found by its working folder.
    roots = [Path(root).absolute() for root in variables.get("PYTHONPATH", "").split(os.pathsep) if root]
    variables["PYTHONPATH"] = os.pathsep.join(map(str, [*roots, Path(__file__).absolute().parents[3]]))
    mark = secrets.token_hex(8)
    variables |= dict(environment or {}) | {PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: mark}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
        cwd=scratch, env=variables, pass_fds=tuple(pass_descriptors), start_new_session=True,
    )  # fmt: skip
    given = {(found.st_dev, found.st_ino) for found in map(os.fstat, pass_descriptors)}
    return ConfinedProcess(
        process, mark, folder=scratch, memory_bytes=memory_bytes, deadline=deadline, output_bytes=output_bytes, lent=given
    )
