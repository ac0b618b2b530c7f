"""`eval --serve`: paths, states, and requests that are refused."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from fusebench.cli.serving import http_server
from fusebench.schema.evaluation import Evaluation
from helpers.mutations import refused

from .conftest import SOURCE

ORDER = {"op": "scale", "source": SOURCE, "stage": "check"}


@pytest.fixture
def client(evaluations: Any) -> TestClient:
    asked, _ = evaluations()
    return TestClient(http_server.make_app(asked), base_url="http://127.0.0.1")


def finished(client: TestClient, task: str) -> dict[str, Any]:
    for _ in range(500):
        answer = client.get(f"/tasks/{task}").json()
        if answer["state"] not in ("queued", "running"):
            return dict(answer)
        time.sleep(0.01)
    raise AssertionError("not done")


def test_an_evaluation_is_asked_for_and_fetched(client: TestClient) -> None:
    given = client.post("/evaluate", json=ORDER)
    assert given.status_code == 202
    answer = finished(client, given.json()["task"])
    assert list(answer) == ["task", "state", "device", "ahead", "evaluation", "error"]
    assert list(answer["evaluation"]) == list(Evaluation.__struct_fields__)
    assert answer["evaluation"]["status"] == "wrong"


def test_health_names_devices_and_queues(evaluations: Any) -> None:
    go = threading.Event()
    asked, _ = evaluations("cuda:0", prepare=lambda judge: setattr(judge, "go", go))
    client = TestClient(http_server.make_app(asked), base_url="http://localhost")
    client.post("/evaluate", json=ORDER)
    health = client.get("/health").json()
    assert (health["status"], len(health["devices"])) == ("ok", 1)
    assert health["devices"][0].keys() == {"device", "name", "queued", "running"}
    go.set()


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (json.dumps(ORDER), {"content-type": "text/plain"}, 415, "expected application/json"),
        (json.dumps(ORDER), {"content-type": "application/json", "host": "attacker.example"}, 400, "Invalid host"),
        ("{", {}, 400, "truncated"),
        ("[" * 100_000, {}, 400, ""),
        (b"\xff", {}, 400, ""),
        ('{"op": 1}', {}, 400, "Expected `str`"),
        ('{"op": "scale", "source": "", "extra": 1}', {}, 400, "unknown field `extra`"),
        ('{"op": "scale", "source": "", "seconds": 1e9}', {}, 400, "<= 3600"),
        ('{"op": "scale", "source": "", "stage": "all"}', {}, 400, "stage is one of check, quick, final"),
        ('{"op": "scael", "source": ""}', {}, 422, "did you mean"),
    ],
)
def test_a_bad_request_is_answered_with_its_reason(client: TestClient, body: Any, headers: dict[str, str], status: int, said: str) -> None:
    answer = client.post("/evaluate", content=body, headers={"content-type": "application/json"} | headers)
    assert answer.status_code == status, answer.text
    assert said in answer.text


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_whatever_a_request_holds_it_is_answered(client: TestClient, count: int) -> None:
    """By a task, or by an error that names the cause; never by 500, which the client of these tests raises."""
    seen = set()

    def post(body: bytes) -> None:
        answer = client.post("/evaluate", content=body, headers={"content-type": "application/json"})
        seen.add(answer.status_code)
        assert answer.status_code in (202, 400, 413, 422, 503), answer.text
        assert answer.json().keys() & {"task", "error"}

    refused(json.dumps(ORDER).encode(), post, count)
    assert 400 in seen


def test_a_large_body_is_refused_while_it_arrives(client: TestClient) -> None:
    sent = 0

    def body() -> Any:
        nonlocal sent
        for _ in range(64):
            sent += 2**18
            yield b" " * 2**18

    answer = client.post("/evaluate", content=body(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/tasks/nope", "/tasks/" + "a" * 10_000, "/", "/evaluate/x"])
def test_an_unknown_path_is_404(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_full_queue_is_503(evaluations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusebench.cli.serving.evaluation_queue.MOST_WAITING", 0)
    asked, _ = evaluations()
    answer = TestClient(http_server.make_app(asked), base_url="http://127.0.0.1").post("/evaluate", json=ORDER)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_text_of_a_candidate_is_escaped(client: TestClient) -> None:
    hostile = "\x1b[2J ##[error] \u202e"
    task = client.post("/evaluate", json={**ORDER, "source": hostile}).json()["task"]
    finished(client, task)
    shown = client.get(f"/tasks/{task}").text
    assert not set("\x1b\u202e") & set(shown)
    assert "##[" not in shown


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gpu7", False)])
def test_only_this_machine_is_local(host: str, local: bool) -> None:
    assert http_server._is_local(host) is local
