"""Who divides the series of a device model: this process, or one of several beside it."""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...cores import usable_cores
from ...stats.changepoint import Cut
from ...stats.segmentation import divide_all
from ...store.catalogue.files import CatalogueError, device_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...store.catalogue.query import Catalogue

Divided = tuple[list[list[Cut]], "NDArray[np.float64]"]
"""What `divide_all` returns."""
Division = Callable[[], Divided]
"""Waits for it."""
Divide = Callable[..., Division]
"""Starts to divide series, and takes the arguments of `divide_all`."""


def at_once(*arguments: Any) -> Division:
    """Divide series in this process, before anything else."""
    divided = divide_all(*arguments)
    return lambda: divided


@contextmanager
def side_by_side(catalogue: Catalogue) -> Iterator[Divide]:
    """Divide the series of several device models at once, each in a process: threads gain nothing from numpy's short calls.

    Enter it before DuckDB starts its threads: the processes are forked here.  They compute alone, so a store's client, which may have a
    thread already, is nothing to them.
    """
    devices = len({device_of(part.path) for part in catalogue.parts})
    count = min(devices, usable_cores())
    if count < 2:
        yield at_once
        return
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _left_to_the_command)
    pool.submit(int)  # forks all of them
    try:
        yield functools.partial(_divide_in, pool)
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown()


def _divide_in(pool: ProcessPoolExecutor, *arguments: Any) -> Division:
    with _killed_is_told():
        future = pool.submit(divide_all, *arguments)

    def wait() -> Divided:
        with _killed_is_told():
            return future.result()

    return wait


@contextmanager
def _killed_is_told() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise CatalogueError("a process that divided series was ended, as for lack of memory: select fewer of them") from None


def _left_to_the_command() -> None:
    """Ctrl-C reaches every process of a terminal: the command answers it, and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
