"""Forked children: results, reasons, and survivors of crashes and hangs."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from fusebench.errors import FusebenchError
from fusebench.evidence.forked import Failed, run_forked


def work(item: str) -> str:
    if item == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "leave":
        os._exit(7)
    if item == "hang":
        time.sleep(600)
    if item == "refuse":
        raise FusebenchError("not this one")
    if item == "raise":
        raise KeyError("this one")
    return item * 1_000_000


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_every_item_has_its_own_outcome(jobs: int) -> None:
    items = ["a", "crash", "b", "refuse", "leave", "c", "raise", "hang", "d"]
    found = dict(run_forked(work, items, str, jobs=jobs, timeout_s=2.0))
    assert {items[index]: one for index, one in found.items() if not isinstance(one, Failed)} == {one: work(one) for one in "abcd"}
    reasons = {items[index]: one.reason for index, one in found.items() if isinstance(one, Failed)}
    assert reasons == {
        "crash": "its process was ended by SIGKILL",
        "refuse": "not this one",
        "leave": "its process ended with exit code 7 and without a result",
        "raise": "KeyError: 'this one'",
        "hang": "it took longer than 2 s and was stopped",
    }


def test_no_child_is_left_when_the_caller_stops_early() -> None:
    """Other tests of the same process may have left children of their own (a compiler's helpers): only new ones count."""
    before = set(psutil.Process().children())
    outcomes = run_forked(work, ["a", "hang", "hang"], str, jobs=2, timeout_s=600.0)
    next(outcomes)
    assert set(psutil.Process().children()) - before, "the children that hang are there"
    outcomes.close()
    assert not set(psutil.Process().children()) - before


def test_nothing_to_do() -> None:
    assert list(run_forked(work, [], str, jobs=2, timeout_s=1.0)) == []
