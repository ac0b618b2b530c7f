"""Worker processes that a server forks, instead of new interpreters: torch is imported once per test session, and not once per worker.

They are processes like others: they crash, hang and are killed apart from the tests.  What a new interpreter does by itself (its
environment, Triton's choice to interpret) is tested on workers that are spawned.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
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
    context.set_forkserver_preload(["torch", "fusebench.runner.workers.worker", "fusebench.timing.measure", "fusebench.accuracy.gate"])
    return context
