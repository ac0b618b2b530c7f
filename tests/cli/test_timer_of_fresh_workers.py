"""The commands that measure in fresh processes tell them with which timer, so that each can make it ready while it starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Outcome

from fusebench.errors import UsageError
from fusebench.runner.workers.pool import WorkerPool


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--suite", "scale"],
        ["ab", "--suite", "scale", "--base-kernels", "kernels", "--time-identical"],
        ["calibrate"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_timer_that_was_asked_for_reaches_the_workers(
    toy_project: Path, fusebench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    timers: list[str] = []

    def planted(self: WorkerPool, *_: object, timer: str, **options: Any) -> None:
        timers.append(timer)
        raise UsageError("planted: nothing is to be measured")

    monkeypatch.setattr(WorkerPool, "__init__", planted)
    outcome = fusebench(*arguments, "--device", "cpu", "--timer", "host")
    assert "planted: nothing is to be measured" in outcome.stderr
    assert timers == ["host"]
