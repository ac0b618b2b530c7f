"""A function that is called from a thread: when, and when no more."""

from __future__ import annotations

import threading
import time

from fusebench.device.periodic import Periodic

NAME = "fusebench-test"


def running() -> bool:
    return any(thread.name == NAME for thread in threading.enumerate())


def test_calls_begin_at_once_are_repeated_and_end() -> None:
    calls = threading.Semaphore(0)
    periodic = Periodic(calls.release, 0.001, name=NAME)
    periodic.start()
    assert all(calls.acquire(timeout=30) for _ in range(5))
    periodic.stop()
    assert not running()


def test_the_end_does_not_wait_for_the_interval() -> None:
    called = threading.Event()
    periodic = Periodic(called.set, 3600.0, name=NAME)
    periodic.start()
    assert called.wait(timeout=30)
    before = time.monotonic()
    periodic.stop()
    periodic.stop()
    assert time.monotonic() - before < 5
    assert not running()


def test_what_never_began_can_be_ended() -> None:
    Periodic(lambda: None, 1.0, name=NAME).stop()
    assert not running()
