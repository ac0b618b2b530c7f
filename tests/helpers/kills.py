"""Commands in forked processes that are ended at any moment, for the tests of what is left and of `--resume`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import NoReturn


def in_child(work: Callable[[], int]) -> int:
    """Do `work` in a forked process, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        code = work()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def seconds_of(work: Callable[[], int]) -> float:
    """How long `work` takes in a forked process, which must end with 0."""
    began = time.monotonic()
    assert ended(in_child(work)) == 0
    return time.monotonic() - began


def killed_at_random(work: Callable[[], int], longest: float, *signals: signal.Signals) -> int:
    """Do `work` in a forked process, and send it one of `signals` (SIGKILL without any) before `longest` seconds are over."""
    pid = in_child(work)
    time.sleep(random.uniform(0.1, 1.0) * longest)
    os.kill(pid, random.choice(signals or (signal.SIGKILL,)))
    return ended(pid)


def interrupted_lock(*_: object, **__: object) -> NoReturn:
    """Raise what Ctrl-C at a lock does now and then: the lock's own error, in place of the interruption."""
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("release unlocked lock")
