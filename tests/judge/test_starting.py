"""Processes that start before they are needed: of the kind that the next evaluation needs, each for one candidate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.judge import starting
from fusebench.judge.channel.tasks import EvaluateTask
from fusebench.judge.judge import Judge
from fusebench.judge.starting import Starter
from fusebench.schema.evaluation import EvaluationStatus, IsolationMeasure, Stage

TASK = EvaluateTask(
    roots=("/kernels",), file="mine.py", shown="mine.py", op="scale", cases=(), stage=Stage.CHECK, seconds=60.0, memory_bytes=None,
    device="cpu", device_name="CPU", keep=True,
)  # fmt: skip
TIMED = msgspec.structs.replace(TASK, stage=Stage.QUICK)


class Process:
    """Stands in for a process."""

    def __init__(self, *, roots: Any, device: str, confined: bool, timed: bool, memory_bytes: int | None = None) -> None:
        self.settings, self.confined, self.alive = (roots, device, timed, memory_bytes), confined, True

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """Every process that is started."""
    found = list[Process]()

    def start(**options: Any) -> Process:
        found.append(Process(**options))
        return found[-1]

    monkeypatch.setattr(starting, "KernelProcess", start)
    return found


def test_a_process_waits_for_each_kind_of_candidate_and_is_given_once(started: list[Process]) -> None:
    starter = Starter()
    for task in (TASK, TIMED, TASK, TIMED):
        starter.candidate_ahead(task)
    assert [process.settings[2] for process in started] == [False, True]
    taken: list[Any] = [starter.candidate(TIMED), starter.candidate(TASK), starter.candidate(TASK)]
    assert taken == [started[1], started[0], started[2]]


@pytest.mark.parametrize("change", [{"memory_bytes": 1 << 30}, {"roots": ("/others",)}, {"device": "cuda:1"}])
def test_a_process_of_other_settings_is_ended(started: list[Process], change: dict[str, Any]) -> None:
    starter = Starter()
    starter.candidate_ahead(TASK)
    taken: Any = starter.candidate(msgspec.structs.replace(TASK, **change))
    assert (taken, started[0].alive, taken.alive) == (started[1], False, True)


def test_what_nobody_took_is_ended(started: list[Process]) -> None:
    starter = Starter()
    for task in (TASK, TIMED):
        starter.candidate_ahead(task)
        starter.baseline_ahead(task)
    assert [process.confined for process in started] == [True, True, False], "a check needs no baseline"
    starter.close()
    assert not any(process.alive for process in started)


@pytest.mark.parametrize(
    ("task", "status", "kinds"),
    [
        (TASK, EvaluationStatus.PASSED, [(False, True), (True, True), (True, False)]),
        (TASK, EvaluationStatus.WRONG, [(False, True)]),
        (TIMED, EvaluationStatus.PASSED, [(True, True)]),
    ],
    ids=["passed", "wrong", "timed"],
)
def test_a_passed_check_starts_what_times_it(
    started: list[Process], task: EvaluateTask, status: EvaluationStatus, kinds: list[tuple[bool, bool]]
) -> None:
    judge = Judge("cuda:0", IsolationMeasure(name="hidden_memory", active=True))
    judge._start_ahead(task, SimpleNamespace(status=status))  # type: ignore[arg-type]
    assert [(process.settings[2], process.confined) for process in started] == kinds, "timed, of a candidate"
    judge.close()
