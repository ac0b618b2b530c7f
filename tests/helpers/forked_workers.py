"""Processes that a server forks, instead of new interpreters: torch is imported once per test session, and not once per process.

They are processes like others: they crash, hang and are killed apart from the tests.  What a new interpreter does by itself (its
environment, Triton's choice to interpret) is tested on processes that are spawned.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any


class ForkedProcess(ForkServerProcess):
    """A process with the environment and the folder that its parent had when it started it."""

    def start(self) -> None:
        self._args = (dict(os.environ), Path.cwd(), self._target, *self._args)  # type: ignore[attr-defined]
        self._target = run_as_spawned
        super().start()


def run_as_spawned(environment: dict[str, str], folder: Path, target: Callable[..., None], *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    target(*arguments)


class Forking(ForkServerContext):
    """What `multiprocessing.get_context("spawn")` gives, with forked processes."""

    Process = ForkedProcess


@functools.cache
def forking() -> Forking:
    """The session's only server.  Triton is not preloaded: each worker decides whether it interprets."""
    context = Forking()
    context.set_forkserver_preload(
        ["torch", "scipy.special", "fusebench.runner.workers.worker", "fusebench.timing.measure", "fusebench.accuracy.gate"]
    )
    return context


def run_module(module: str, arguments: Sequence[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What `python -m module arguments` prints and exits with in `folder`, from a forked process that imports fusebench anew.

    Its workers are forked too, by the same server.
    """
    with tempfile.TemporaryDirectory() as kept:
        files = (Path(kept) / "stdout", Path(kept) / "stderr")
        context = forking()
        forkserver.ensure_running()
        address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
        target = functools.partial(run_as_main, module, arguments, environment, folder, files=files, address=address)
        process = context.Process(target=target)
        process.start()
        process.join(600)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess([module, *arguments], process.exitcode, *(file.read_text() for file in files))


def run_as_main(
    module: str, arguments: Sequence[str], environment: dict[str, str], folder: Path, *, files: tuple[Path, Path], address: str
) -> None:
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "fusebench"]:
        del sys.modules[name]
    # Python lets a forked process talk to its own server (see `_serve_one`), but forgets the address.
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address, server.ensure_running = address, lambda: None
    context = Forking()
    multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment]
    sys.argv[1:] = arguments
    sys.path.insert(0, str(folder))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
