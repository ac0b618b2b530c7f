"""Processes that a server forks, instead of new interpreters: torch is imported once per test session, and not once per process.

They are processes like others: they crash, hang and are killed apart from the tests.  What a new interpreter does by itself (its
environment, Triton's choice to interpret) is tested on processes that are spawned.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

TESTS = str(Path(__file__).parents[1])


class ForkedProcess(ForkServerProcess):
    """A process with the environment and the folder that its parent had when it started it."""

    def start(self) -> None:
        self._args = (dict(os.environ), Path.cwd(), self._target, *self._args)  # type: ignore[attr-defined]
        self._target = run_as_spawned
        super().start()


def run_as_spawned(environment: dict[str, str], folder: Path, target: Callable[..., None], *arguments: Any) -> None:
    sys.dont_write_bytecode = True  # see the fixture no_bytecode_of_edited_files
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    target(*arguments)


class Forking(ForkServerContext):
    """What `multiprocessing.get_context("spawn")` gives, with forked processes."""

    Process = ForkedProcess


@functools.cache
def forking() -> Forking:
    """The session's only server.  Triton is not preloaded: each worker decides whether it interprets.

    Nor is torch's compiler, which imports Triton; but what else it imports is: that took half of a measuring worker's start.
    """
    context = Forking()
    context.set_forkserver_preload(
        [
            *("torch", "scipy.special", "sympy", "networkx", "jinja2", "torch.distributed.tensor", "torch.onnx"),
            *("fusebench.runner.workers.worker.main", "fusebench.timing.measure", "fusebench.accuracy.gate"),
            "helpers.preloaded",
        ]
    )
    # Python 3.11 hands the server no path: without the tests' folder it would pass over `helpers.preloaded` and say nothing.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, *([before] if before else [])])
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    os.register_at_fork(after_in_child=_keep_server)
    return context


def _keep_server() -> None:
    """A child that a test forks uses its parent's server, which it would else wait for as for a child of its own, and fail."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is not None:
        server.ensure_running = lambda: None


def end_by_import_of(module: str) -> None:
    """End this process with 7 where the module is imported, else with 8.  Here, because a server knows the tests' helpers alone."""
    os._exit(7 if module in sys.modules else 8)


class Descriptor:
    """A file descriptor that a process gets as a copy of its own when it starts."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.number),)


def _received(copy: Any) -> Descriptor:
    return Descriptor(copy.detach())


class ForkedModule:
    """`subprocess.Popen` for `python -m module`: a forked process, which imports fusebench anew and forks its own workers alike."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int | IO[bytes],
        stderr: IO[bytes],
        env: dict[str, str],
        start_new_session: bool,
    ) -> None:
        module = command.index("-m") + 1
        reading, writing = os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(writing, "wb") if stdin == subprocess.PIPE else None
        self.stdout: IO[bytes] | None = None
        if isinstance(stdout, int):
            answers, answering = os.pipe()
            self.stdout = os.fdopen(answers, "rb")
        else:
            answering = os.dup(stdout.fileno())
        context = forking()
        target = functools.partial(
            run_as_main,
            command[module:],
            env,
            [Descriptor(number) for number in (reading, answering, stderr.fileno())],
            address=forkserver._forkserver._forkserver_address,  # type: ignore[attr-defined]
            own_session=start_new_session,
            own_folder="-P" not in command,
        )
        self._process = context.Process(target=target)
        self._process.start()
        self.pid = self._process.pid
        os.close(reading)
        os.close(answering)
        if self.stdin is None:
            os.close(writing)

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


@contextlib.contextmanager
def forking_compilers() -> Iterator[None]:
    """The processes that record and compile for static evidence are forked meanwhile."""
    from fusebench.evidence import static_process

    before = static_process.subprocess
    static_process.subprocess = SimpleNamespace(PIPE=subprocess.PIPE, Popen=ForkedModule)  # type: ignore[assignment]
    try:
        yield
    finally:
        static_process.subprocess = before


def run_module(arguments: Sequence[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What `python -m *arguments` prints and exits with in `folder`."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with contextlib.chdir(folder):
            process = ForkedModule(
                ["-m", *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, start_new_session=False
            )
        code = process.wait()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read().decode(), stderr.read().decode())


def run_as_main(
    command: Sequence[str], environment: dict[str, str], files: Sequence[Descriptor], *, address: str, own_session: bool, own_folder: bool
) -> None:
    for number, file in enumerate(files):
        os.dup2(file.number, number)
        os.close(file.number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  for as long as the process lives
    if own_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("OMP_NUM_THREADS") == "1":  # read when torch was imported
        sys.modules["torch"].set_num_threads(1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "fusebench"]:
        del sys.modules[name]
    use_server(address)  # Python lets a forked process talk to its own server (see `_serve_one`), but forgets the address
    sys.argv[1:] = command[1:]
    if own_folder:
        sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def fork_from_here() -> str:
    """Python source after which a new interpreter forks its worker processes from this session's server."""
    forking()
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    return f"import sys; sys.path.append({TESTS!r}); from helpers.forked_workers import use_server; use_server({address!r})\n"


def use_server(address: str) -> None:
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address, server.ensure_running = address, lambda: None
    if server._forkserver_alive_fd is None:  # sent along with every request
        server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
    context = Forking()
    multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment]
