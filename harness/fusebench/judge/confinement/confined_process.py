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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil

from .process_tree import MARK_VARIABLE, ORIGIN_VARIABLE, has_ended, kill_tree

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
SCRATCH_BYTES = 2 << 30
"""Most that the scratch folder may hold."""
SCRATCH_FILES = 100_000
"""Most files and folders in it; looking through so many takes half a second."""
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


_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of Linux' posix-timers_types.h: the clock of another process's CPU time, as clock_getcpuclockid(3) builds it."""


class Cause(StrEnum):
    """Why a confined process ended."""

    EXITED = "exited"
    SIGNAL = "signal"
    HUNG = "hung"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    DISK_FULL = "disk_full"
    FLOODED = "flooded"
    STOPPED = "stopped"
    """The trusted side killed it: the work was done, or someone asked."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a confined process ended."""

    cause: Cause
    exit_code: int | None = None
    """None unless it exited by itself."""
    signal: str | None = None
    """Name of the signal that ended it, such as `SIGSEGV`; None if it exited, or if the trusted side killed it."""
    output: str = ""
    """Beginning and end of stdout and stderr, in order of arrival; undecodable bytes replaced. Written by the candidate: data."""
    peak_bytes: int = 0
    """Most memory seen resident in the whole tree."""
    survivors: tuple[int, ...] = ()
    """Processes that could not be killed; waiting in the kernel, for instance."""

    def describe(self) -> str:
        """One sentence without the output."""
        said = {
            Cause.HUNG: "did not end in the time allowed",
            Cause.OUT_OF_MEMORY: f"took too much memory ({self.peak_bytes / 2**30:.1f} GiB)",
            Cause.TOO_MANY_PROCESSES: "started too many processes",
            Cause.DISK_FULL: "wrote too much into its scratch folder",
            Cause.FLOODED: "printed too much",
            Cause.STOPPED: "was stopped",
            Cause.SIGNAL: f"was killed by {self.signal}",
        }
        return said.get(self.cause, f"exited with code {self.exit_code}")


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
        self._kills_before = _out_of_memory_kills()
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
        while self.running() and any(map(_runs, self._members())) and time.monotonic() < give_up:
            time.sleep(1e-5)

    def resume(self) -> None:
        """Let the tree run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with self._change, suppress(ProcessLookupError, PermissionError):
            if not self._ended.is_set():  # afterwards the group's number may be another's
                os.killpg(self.pid, number)

    def cpu_ns(self) -> int:
        """CPU time that the processes of the group and their ended children have used, by the kernel's account; 0 once all have ended.

        An ended child counts until its parent asks for it, and then, in steps of `_TICK_NS`, as the parent's.  Where `isolation` keeps
        children, nobody else can ask.
        """
        total = 0
        for pid in self._members():
            with suppress(OSError):
                total += time.clock_gettime_ns(~pid << 3 | _PROCESS_CLOCK)
            with suppress(OSError, IndexError):
                stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                total += (int(stat[13]) + int(stat[14])) * _TICK_NS
        return total

    def _members(self) -> list[int]:
        """The processes of the group."""
        found = []
        for name in os.listdir("/proc"):  # noqa: PTH208  a few hundred names, several times a batch
            with suppress(OSError, ValueError):
                if os.getpgid(int(name)) == self.pid:
                    found.append(int(name))
        return found

    def _finish(self) -> None:
        """Kill what is left, reap it, and collect the last output."""
        self._survivors = kill_tree(self._process, self._mark, self._seen)
        self._reader.join(1.0)
        if not self._reader.is_alive() and self._process.stdout is not None:  # a survivor may hold the pipe open
            self._process.stdout.close()
        if self._cause is None and self._process.returncode == -signal.SIGKILL and _out_of_memory_kills() > self._kills_before:
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
            if _outgrown(self._folder):
                return Cause.DISK_FULL
            memory = psutil.virtual_memory()
            if memory.available < SPARE_SHARE * memory.total:
                return Cause.OUT_OF_MEMORY
            files = {key: size for member in members for key, size in _memory_files(member.pid)}
            self._files_bytes = sum(size for key, size in files.items() if key not in self._lent)
        resident = sum(_resident_bytes(member, shared=len(members) > 1) for member in members)
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


def signal_name(number: int) -> str:
    """Such as `SIGSEGV`; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _out_of_memory_kills() -> int:
    """Processes that the kernel has killed since boot because memory ran out; 0 where it does not count them."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _resident_bytes(process: psutil.Process, *, shared: bool) -> int:
    """Memory in use; with `shared`, pages of several processes count in part for each, as forks share most."""
    with suppress(OSError, StopIteration):
        if shared:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _memory_files(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Device and number of each memory file that a process holds open, with its bytes, which are resident only where they are mapped."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  twice a second
            with suppress(OSError):
                if os.readlink(f"{folder}/{name}").startswith("/memfd:"):  # noqa: PTH115
                    found = os.stat(f"{folder}/{name}")  # noqa: PTH116
                    yield (found.st_dev, found.st_ino), found.st_blocks * 512


def _runs(pid: int) -> bool:
    """Whether a thread of this process may run code of its own: not stopped (T, t), ended (Z, X) or deep in the kernel (D)."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  after every request
            with suppress(OSError):  # a thread that has just ended
                if Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"TtZXD":
                    return True
    return False


def _outgrown(folder: Path) -> bool:
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
