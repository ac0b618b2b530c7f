"""`eval --mcp`: the tool as a client of the protocol sees it."""

from __future__ import annotations

import io
import json
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("mcp")
import anyio
import mcp.server.mcpserver.server
from mcp.client.client import Client
from mcp.server.stdio import stdio_server

from fusebench.cli.serving.evaluation_queue import Order
from fusebench.cli.serving.mcp_server import make_server, serve
from fusebench.schema.evaluation import Evaluation
from helpers.mutations import mutated

from .conftest import SOURCE


def with_client(evaluations: Any, act: Callable[[Any], Awaitable[Any]], **changes: Any) -> Any:
    """What `act` returns for a client of a server on a planted evaluator."""
    asked, _ = evaluations(**changes)

    async def run() -> Any:
        async with Client(make_server(asked, ["scale"])) as client:
            return await act(client)

    return anyio.run(run)


def test_the_tool_takes_the_arguments_of_the_command(evaluations: Any) -> None:
    (tool,) = with_client(evaluations, lambda client: client.list_tools()).tools
    assert tool.name == "evaluate_kernel"
    assert set(tool.input_schema["properties"]) == set(Order.__struct_fields__)
    assert tool.input_schema["required"] == ["op"]


def test_the_answer_is_the_document(evaluations: Any) -> None:
    given = {"op": "scale", "source": SOURCE, "stage": "check"}
    answer = with_client(evaluations, lambda client: client.call_tool("evaluate_kernel", given))
    assert not answer.is_error
    assert list(answer.structured_content) == list(Evaluation.__struct_fields__)
    assert answer.structured_content["status"] == "wrong"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"op": "scael", "source": ""}, "did you mean 'scale'"),
        ({"op": "scale"}, "pass either `source`"),
        ({"op": "scale", "source": "", "stage": "all"}, "stage"),
        ({"op": "scale", "source": "", "seconds": 1e9}, "3600"),
        ({"op": "scale", "source": None, "file": "/etc/passwd"}, "below the folder"),
    ],
)
def test_a_bad_call_is_an_error_with_its_reason(evaluations: Any, given: dict[str, Any], said: str) -> None:
    answer = with_client(evaluations, lambda client: client.call_tool("evaluate_kernel", given))
    assert answer.is_error
    assert said in answer.content[0].text


def test_a_call_that_nobody_waits_for_is_stopped(evaluations: Any) -> None:
    judges = []

    def prepare(judge: Any) -> None:
        judge.go = threading.Event()
        judges.append(judge)

    async def leave(client: Any) -> None:
        with anyio.move_on_after(0.3):
            await client.call_tool("evaluate_kernel", {"op": "scale", "source": SOURCE})
        with anyio.move_on_after(5):
            while not (judges and judges[0].stopped.is_set()):
                await anyio.sleep(0.01)

    with_client(evaluations, leave, prepare=prepare)
    assert judges[0].stopped.is_set()


def test_deep_json_ends_no_server(evaluations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that the protocol's own parser reads is answered by an error; one that is deeper is none, and the next is answered."""
    asked, _ = evaluations()
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "deep", "version": "1"}}
    messages = [
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    ]
    nested = [f'{{"op": {"[" * depth}{"]" * depth}}}' for depth in (100_000, 150)]
    for number, given in enumerate([*nested, json.dumps({"op": "scale", "source": SOURCE, "stage": "check"})], 1):
        call = f'{{"name": "evaluate_kernel", "arguments": {given}}}'
        messages.append(f'{{"jsonrpc": "2.0", "id": {number}, "method": "tools/call", "params": {call}}}')
    reading, writing = os.pipe()
    answers = io.StringIO()

    def speak() -> None:
        with os.fdopen(writing, "w") as line:
            line.write("".join(f"{one}\n" for one in messages))
            line.flush()
            for _ in range(600):
                if '"id":3' in answers.getvalue():
                    break
                time.sleep(0.1)

    threading.Thread(target=speak, daemon=True).start()
    streams = partial(stdio_server, anyio.wrap_file(os.fdopen(reading)), anyio.wrap_file(answers))
    monkeypatch.setattr(mcp.server.mcpserver.server, "stdio_server", streams)
    serve(asked, ["scale"])
    found = {one["id"]: one["result"] for one in map(json.loads, answers.getvalue().splitlines())}
    assert found[2]["isError"]
    assert "valid string" in found[2]["content"][0]["text"]
    assert found[3]["structuredContent"]["status"] == "wrong"


@pytest.mark.parametrize("count", [30, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_whatever_a_call_holds_it_is_answered(evaluations: Any, count: int) -> None:
    """By a document, or by an error; a client's call raises nothing else."""
    draw = random.SystemRandom()
    order = json.dumps({"op": "scale", "source": SOURCE, "stage": "check", "suite": ["s"], "seconds": 5.0, "memory_bytes": 1 << 30})

    async def act(client: Any) -> list[bool]:
        failed = []
        while len(failed) < count:
            try:
                given = json.loads(mutated(order.encode(), random.Random(draw.getrandbits(32))))
            except (ValueError, RecursionError):
                continue
            if isinstance(given, dict):
                failed.append((await client.call_tool("evaluate_kernel", given)).is_error)
        return failed

    assert True in with_client(evaluations, act)
