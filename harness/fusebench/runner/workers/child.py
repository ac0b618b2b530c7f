"""One worker process from its start to its end: its line, its output, its memory, and how it ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from ...device.triton_programs import assembler_environment
from ...shared_text import SharedText
from .channel import RunnerEnd, line
from .protocol import WorkerSetup
from .worker.calls import NAME_BYTES, read_name
from .worker.main import Streams, worker_main

STOP_S = 5.0
"""Time that a worker gets to leave by itself once it was asked; releasing a CUDA context takes well under a second."""
SHOWN_BYTES = 2**18
"""Output of one worker that reaches the terminal; kernels that print for debugging need less."""
MOST_OUTPUT_BYTES = 2**26
"""Output of one worker after which it is ended, as a flood.  The runner reads some hundred megabytes a second."""
LEAST_FREE_SHARE = 0.03
"""Share of the host's memory below which the worker that holds most of the rest is ended, before the system ends something else."""


class Child:
    """One process of a worker.  It is started by the constructor, and `kill` ends it."""

    def __init__(self, setup: WorkerSetup) -> None:
        context = multiprocessing.get_context("spawn")
        self.setup = setup
        self.ready = False
        """Whether it has loaded everything."""
        self.called: list[str] = []
        """Kernels that it was told to call, each once, in order."""
        self._ended_by_us = False
        self._asked_to_leave = 0.0
        """When, as `time.monotonic` has it."""
        self._closing = threading.Lock()
        """Held to close a line: a thread that finds the worker gone may end it while the main thread ends it after Ctrl-C."""
        self.channel: RunnerEnd
        self.channel, theirs = line(context.Pipe())
        self._calling = SharedText(NAME_BYTES)
        reading, output = context.Pipe(duplex=False)
        lifeline, self._lifeline = context.Pipe(duplex=False)
        arguments = (theirs, setup, self._calling, Streams(output, lifeline))
        self._process: SpawnProcess = context.Process(target=worker_main, args=arguments, name="fusebench-worker", daemon=True)
        self._kills_before = _kills_by_system()
        try:
            self._process.start()
        finally:
            theirs.close()
            self._calling.close()
            output.close()
            lifeline.close()
        self.output = Output(reading)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def leaves(self) -> bool:
        """Whether it was asked to leave."""
        return self._asked_to_leave > 0

    @property
    def calling(self) -> str:
        """The name of the kernel, arm or file whose code runs; empty while there is none."""
        return read_name(self._calling)

    def excess(self) -> str:
        """The limit that the process exceeds, in words; empty while it keeps to all."""
        if self.output.size > MOST_OUTPUT_BYTES:
            return f"it printed more than {MOST_OUTPUT_BYTES >> 20} MiB"
        held, free, total = _resident_bytes(self.pid), *_host_memory()
        if total and free < LEAST_FREE_SHARE * total and held > total / 2:
            return f"it held {held / 2**30:.3g} GiB of the host's {total / 2**30:.3g} GiB of memory"
        return ""

    def how_it_ended(self) -> tuple[str, bool]:
        """How the process ended, in words, and whether the system ended it because memory ran out."""
        self._process.join(STOP_S)
        code = self._process.exitcode
        self.kill()
        if code is None:
            return "it closed its connection to the runner", False
        if code >= 0:
            return f"exit status {code}{self.output.last_words()}", False
        name = signal.Signals(-code).name
        if code == -signal.SIGKILL and _kills_by_system() > self._kills_before:
            return f"the host's memory ran out, and the system ended it (signal {name})", True
        return f"signal {name}{self.output.last_words()}", False

    def dismiss(self) -> None:
        """Ask the worker to leave; `stop` waits for that."""
        if not self._asked_to_leave:
            with suppress(OSError):  # it may be gone already, which is what is wanted
                self.channel.send(None)
            with self._closing:
                self.channel.close()
            self._asked_to_leave = time.monotonic()

    def stop(self) -> None:
        """End the worker: ask, then kill."""
        self.dismiss()
        # Of several that were asked together, all have had their time when the first one has.
        self._process.join(max(0.0, self._asked_to_leave + STOP_S - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the worker, and every process that it started, at once."""
        self.interrupt()
        self._process.join(STOP_S)
        self.output.end()
        with self._closing:
            self.channel.close()
            self._lifeline.close()

    def interrupt(self) -> None:
        """Have the system end it, from any thread; whoever waits for its reply gets a failure."""
        if self.pid is not None:
            with suppress(OSError):  # it does not lead its session yet, or nothing is left of it
                os.killpg(self.pid, signal.SIGKILL)
        if self._process.is_alive():
            self._process.kill()


class Output:
    """Reads everything that a worker prints, shows its beginning on stderr, and keeps the end."""

    def __init__(self, reading: Connection) -> None:
        self.size = 0
        """Bytes so far."""
        self._reading, self._tail = reading, b""
        self._thread = threading.Thread(target=self._read, name="fusebench-worker-output", daemon=True)
        self._thread.start()

    def last_words(self) -> str:
        """The last line, where it tells why the process ended; empty where nothing was printed."""
        self._thread.join(1.0)
        lines = [text for text in self._tail.decode(errors="replace").splitlines() if text.strip()]
        words = "".join(letter if letter.isprintable() else "?" for letter in lines[-1].strip()) if lines else ""
        return f" (it printed last: {words[:200]})" if words else ""

    def end(self) -> None:
        """Wait for the end of the output; a process that a kernel left behind may hold it open, and is not waited for."""
        self._thread.join(1.0)

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self._reading.fileno(), 2**16):
                self._show(chunk)
                self.size += len(chunk)
                self._tail = (self._tail + chunk)[-2000:]
        self._reading.close()

    def _show(self, chunk: bytes) -> None:
        shown = chunk[: max(0, SHOWN_BYTES - self.size)]
        if shown and len(shown) < len(chunk):
            shown += f"\n[fusebench: a worker printed more than {SHOWN_BYTES >> 10} KiB; its further output is not shown]\n".encode()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
            os.write(2, shown)


_starting = threading.Lock()
"""The environment belongs to the whole process: one worker is started at a time."""


def start_child(setup: WorkerSetup) -> Child:
    """Start a process; it imports torch and the kernels in the background."""
    changes = {"TRITON_INTERPRET": "1" if setup.interpret else None, **assembler_environment()}
    with _environment(changes), interrupts_held_back():
        return Child(setup)


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables changed (None: absent) while a child process is started."""
    with _starting:
        before = {name: os.environ.get(name) for name in changes}
        try:
            _apply(changes)
            yield
        finally:
            _apply(before)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C is held back from this thread, and from a child that is started meanwhile, until `worker_main` is there to ignore it.

    It reaches every process of the terminal: each that had not come so far printed a traceback of its own.
    """
    resource_tracker.ensure_running()  # multiprocessing starts it before the first child, and then lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _apply(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _resident_bytes(pid: int | None) -> int:
    """Memory that a process holds; 0 where that is not known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _host_memory() -> tuple[int, int]:
    """Free memory and memory in all that this process may use, in bytes; zeros where they are not known.

    Of the machine and of the container (version 2 of control groups), whichever has less left.
    """
    try:
        known = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
        machine = tuple(int(known[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    except (OSError, ValueError, KeyError, IndexError):
        return 0, 0
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        cached = dict(row.split() for row in (group / "memory.stat").read_text().splitlines()).get("inactive_file", 0)
    except (OSError, ValueError):  # no container, or one without a limit
        return machine[0], machine[1]
    return min((machine[0], machine[1]), (limit - used + int(cached), limit))


def _kills_by_system() -> int:
    """Processes that the system has ended so far because memory ran out; 0 where it does not say."""
    for file in (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")):
        with suppress(OSError, ValueError):
            known = dict(row.split() for row in file.read_text().splitlines())
            if "oom_kill" in known:
                return int(known["oom_kill"])
    return 0
