"""The queue behind both servers: order, bounds, faults, the end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fusebench.cli.serving import evaluation_queue as module
from fusebench.cli.serving.evaluation_queue import Order, QueueFullError, State
from fusebench.errors import UsageError
from fusebench.schema.evaluation import EvaluationStatus

from .conftest import SOURCE


def order(**changes: Any) -> Order:
    return Order(**{"op": "scale", "source": SOURCE, **changes})


def test_a_task_is_queued_and_done_with_the_whole_document(evaluations: Any) -> None:
    asked, judges = evaluations()
    task = asked.submit(order(stage="check"))
    assert task.finished.wait(5)
    answer = asked.answer(task.id)
    assert (answer.state, answer.device, answer.ahead) == (State.DONE, "cpu", 0)
    assert answer.evaluation.reason == SOURCE.strip()
    assert (answer.evaluation.file, answer.evaluation.next_command) == ("", "fusebench eval FILE.py --op scale --stage check")
    assert asked.submit(order()).finished.wait(5)
    assert len(judges) == 1, "the evaluator stays warm"


def test_each_device_has_a_queue_and_auto_takes_the_shorter(evaluations: Any) -> None:
    go = threading.Event()
    asked, _ = evaluations("cuda:0", "cuda:1", prepare=lambda judge: setattr(judge, "go", go))
    tasks = [asked.submit(order()) for _ in range(4)]
    assert sorted(task.device for task in tasks) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    last = asked.submit(order(device="cuda:1"))
    assert asked.answer(last.id).ahead == 2
    go.set()
    assert all(task.finished.wait(5) for task in [*tasks, last])
    with pytest.raises(UsageError, match=r"this server has cuda:0, cuda:1"):
        asked.submit(order(device="cuda:7"))


def test_the_queue_and_the_finished_tasks_are_bounded(evaluations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    monkeypatch.setattr(module, "MOST_DONE", 1)
    go = threading.Event()
    asked, _ = evaluations(prepare=lambda judge: setattr(judge, "go", go))
    tasks = [asked.submit(order())]
    while asked.answer(tasks[0].id).state is State.QUEUED:
        pass
    tasks += [asked.submit(order()), asked.submit(order())]
    with pytest.raises(QueueFullError):
        asked.submit(order())
    go.set()
    assert all(task.finished.wait(5) for task in tasks)
    latest = asked.submit(order())
    assert [asked.answer(task.id) is None for task in tasks] == [True, True, False]
    assert latest.finished.wait(5)


def test_a_fault_ends_its_task_alone_and_the_next_has_a_new_evaluator(evaluations: Any) -> None:
    faults: list[Exception | None] = [UsageError("planted"), None]
    asked, judges = evaluations(prepare=lambda judge: setattr(judge, "fault", faults.pop(0)))
    task = asked.submit(order())
    assert task.finished.wait(5)
    assert (task.state, task.error) == (State.FAILED, "planted")
    again = asked.submit(order())
    assert again.finished.wait(5)
    assert again.state is State.DONE
    assert [judge.closed for judge in judges] == [True, False]


def test_closing_stops_the_candidate_in_progress_and_drops_the_others(evaluations: Any) -> None:
    asked, judges = evaluations(prepare=lambda judge: setattr(judge, "go", threading.Event()))
    running, waiting = asked.submit(order()), asked.submit(order())
    while asked.answer(running.id).state is State.QUEUED:
        pass
    asked.close()
    assert running.evaluation.status is EvaluationStatus.UNDECIDED
    assert judges[0].closed
    assert waiting.state is State.QUEUED
    with pytest.raises(QueueFullError):
        asked.submit(order())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"op": "scael"}, "did you mean 'scale'"),
        ({"suite": ["nope"]}, "unknown suite 'nope'"),
        ({"suite": ["suites/scale.toml"]}, "expected the name of a suite"),
        ({"suite": ["../../etc/passwd"]}, "expected the name of a suite"),
        ({"case": "nope"}, "unknown case 'nope'"),
        ({"source": None}, "pass either `source`"),
        ({"file": "mine.py"}, "pass either `source`"),
        ({"source": None, "file": "/etc/passwd"}, "below the folder"),
        ({"source": None, "file": "../outside.py"}, "below the folder"),
        ({"source": None, "file": "pyproject.toml"}, "expected a .py file"),
        ({"source": None, "file": "gone.py"}, "no such file"),
        ({"source": "#" * (2**20 + 1)}, "expected at most 1048576"),
    ],
)
def test_a_bad_order_is_refused_at_once(evaluations: Any, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (tmp_path / "outside.py").write_text(SOURCE)
    asked, judges = evaluations()
    with pytest.raises(UsageError, match=said):
        asked.submit(order(**changes))
    assert judges == []


def test_a_file_below_the_servers_folder_is_read_when_it_is_asked_for(evaluations: Any, toy_project: Path) -> None:
    (toy_project / "mine.py").write_text("first")
    go = threading.Event()
    asked, _ = evaluations(prepare=lambda judge: setattr(judge, "go", go))
    task = asked.submit(order(source=None, file="mine.py"))
    (toy_project / "mine.py").write_text("second")
    go.set()
    assert task.finished.wait(5)
    assert (task.evaluation.reason, task.evaluation.file) == ("first", "mine.py")


def test_the_evaluator_leaves_a_device_that_another_process_wants(evaluations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = threading.Event()
    monkeypatch.setattr("fusebench.device.wanted_by_others", lambda device: wanted.is_set())
    monkeypatch.setattr(module, "YIELD_S", 0.01)
    asked, judges = evaluations()
    assert asked.submit(order()).finished.wait(5)
    wanted.set()
    for _ in range(500):
        if judges[0].closed:
            break
        threading.Event().wait(0.01)
    assert judges[0].closed, "it holds no memory with which a run would find the device in use"
    again = asked.submit(order())
    assert again.finished.wait(5)
    assert (again.state, len(judges)) == (State.DONE, 2)
