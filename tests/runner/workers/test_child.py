"""One worker process from the runner's side: how its lines end."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fusebench.runner.workers.channel import RunnerEnd
from fusebench.runner.workers.child import Child


def test_a_worker_that_two_threads_end_has_its_lines_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child.__new__(Child)
    child._process = cast("Any", SimpleNamespace(pid=None, is_alive=lambda: False, join=lambda timeout: None))
    child.output = cast("Any", SimpleNamespace(end=lambda: None))
    child._closing = threading.Lock()
    ours, theirs = multiprocessing.Pipe()
    child.channel = RunnerEnd(ours, b"token")
    lifeline, child._lifeline = multiprocessing.Pipe(duplex=False)
    close = Connection._close  # type: ignore[attr-defined]

    def slow_close(connection: Any) -> None:
        close(connection)
        time.sleep(0.05)  # in which another thread finds it open still

    monkeypatch.setattr(Connection, "_close", slow_close)
    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(child.kill) for _ in range(2)]:
            ended.result()
    assert ours.closed
    assert child._lifeline.closed
    assert not theirs.closed
    assert not lifeline.closed
