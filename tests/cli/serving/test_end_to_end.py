"""One real server with real judges: an honest candidate, one that ends its process, and Ctrl-C while one hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("uvicorn")
HARNESS = Path(__file__).parents[3] / "harness"
HONEST = """
from fusebench import kernel


@kernel("scale", "mine", version=1, role="fused", language="torch")
def mine(x, *, factor=2.0):
    {planted}x.mul_(factor)
"""


SUITE = """
[suite]
name = "large"
description = "one case whose draws hold enough values for the gate to need few of them, and no more"

[[case]]
name = "large"
op = "scale"
params = { size = 65536 }
"""


class Server:
    """`fusebench eval --serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "fusebench", "eval", "--serve", "--port", "0", "--device", "cpu"]
        environment = os.environ | {"PYTHONPATH": str(HARNESS)}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        assert first.startswith("serving http://127.0.0.1:"), first
        self.url = first.split()[1]

    def ask(self, path: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def judged(self, source: str, **order: Any) -> dict[str, Any]:
        task = self.ask("/evaluate", {"op": "scale", "source": source, "stage": "check", "suite": ["large"], "seconds": 300, **order})[
            "task"
        ]
        while (answer := self.ask(f"/tasks/{task}"))["state"] in ("queued", "running"):
            time.sleep(0.1)
        assert answer["state"] == "done", answer
        return dict(answer["evaluation"])


def test_a_server_judges_and_ends(toy_project: Path) -> None:
    (toy_project / "suites" / "large.toml").write_text(SUITE)
    server = Server(toy_project)
    try:
        passed = server.judged(HONEST.format(planted=""))
        assert (passed["status"], passed["kernel"], passed["reason"]) == ("passed", "scale/mine@1", "")
        ended = server.judged(HONEST.format(planted="import os; os._exit(0); "))
        assert ended["status"] == "crashed", ended
        hanging = server.ask("/evaluate", {"op": "scale", "source": HONEST.format(planted="import time; time.sleep(1000); ")})["task"]
        while server.ask(f"/tasks/{hanging}")["state"] == "queued":
            time.sleep(0.1)
        time.sleep(1.0)
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
        assert psutil.wait_procs(children, timeout=10)[1] == []
    finally:
        server.process.kill()
        server.process.communicate()
