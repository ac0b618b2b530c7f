"""A stand-in for the `fusebench` command, which says what a test tells it to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fusebench.ci.steps import Steps
from fusebench.config import Project

_COMMAND = """
import json, pathlib, sys, time
script = json.loads(pathlib.Path(sys.argv[1]).read_text())
arguments = sys.argv[2:]
with pathlib.Path(sys.argv[1]).with_name("calls.jsonl").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
name = arguments[0] + (" --static" if "--static" in arguments else "")
said = script.get(name, {})
sys.stderr.write(said.get("stderr", ""))
sys.stderr.flush()
time.sleep(said.get("sleep", 0))
sys.stdout.write(said["stdout"] if "stdout" in said else json.dumps(said.get("document")))
sys.exit(said.get("exit", 0))
"""


class Script:
    """`script.says("run", exit=3, stderr="error: busy\\n")`; `calls` are the commands that were carried out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.echoed: list[str] = []
        self._said: dict[str, Mapping[str, Any]] = {}
        (folder / "command.py").write_text(_COMMAND)

    def says(self, command: str, **said: Any) -> Script:
        self._said[command] = said
        (self.folder / "script.json").write_text(json.dumps(self._said))
        return self

    @property
    def calls(self) -> list[list[str]]:
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def steps(self) -> Steps:
        command = (sys.executable, str(self.folder / "command.py"), str(self.folder / "script.json"))
        return Steps(self.folder, self.echoed.append, command)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path).says("nothing")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with the kernels `scale/fast@2` and `scale/chain@1`, of one file each."""
    kernels = tmp_path / "kernels" / "scale"
    kernels.mkdir(parents=True)
    (kernels / "op.py").write_text("")
    (kernels / "fast.py").write_text(
        'from fusebench import kernel\n\n\n@kernel("scale", "fast", version=2, role="fused")\ndef fast(): ...\n'
    )
    (kernels / "chain.py").write_text('from fusebench import kernel\n\n\n@kernel("scale", "chain", role="split")\ndef chain(): ...\n')
    return Project(root=tmp_path, kernels=(tmp_path / "kernels",), suites=(), results=tmp_path / "results")


@pytest.fixture
def judgement() -> Callable[..., dict[str, Any]]:
    """A row of `gate --json`."""

    def build(kernel: str = "scale/fast@2", verdict: str = "regression", **fields: Any) -> dict[str, Any]:
        row = {
            "case": "big",
            "suite": "scale",
            "kernel": kernel,
            "verdict": verdict,
            "decides": True,
            "change": 1.05,
            "reason": "5 % slower",
        }
        return row | fields

    return build
