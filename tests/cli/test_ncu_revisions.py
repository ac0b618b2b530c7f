"""`fusebench ncu` with a base beside this checkout: an earlier run, a folder of kernels, a commit."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result as Outcome

from fusebench.schema import ExitCode
from fusebench.store.counter_folder import read_counters
from helpers import ncu_bench
from helpers.ncu_bench import SELECTION, add_kernel, only_run, record

Fusebench = Callable[..., Outcome]

project = ncu_bench.project


def test_an_earlier_run_is_put_beside(fusebench: Fusebench, project: Path, fake_ncu: Any) -> None:
    assert fusebench(*SELECTION, "--kernel", "twin@2").exit_code == ExitCode.PASS
    first = only_run(project)
    fake_ncu.behave(kernels={"scale/twin@2": {"rows": [0]}})
    outcome = fusebench(*SELECTION, "--kernel", "twin@2", "--against", str(first), "--json")
    document = json.loads(outcome.stdout)
    (diff,) = document["diffs"]
    assert (diff["before"], diff["after"]) == ("scale/twin@2 (base)", "scale/twin@2")
    registers = next(change for change in diff["changes"] if change["figure"] == "registers per thread")
    assert (registers["before"], registers["after"]) == (72, 96)
    assert document["record"]["base"].startswith(f"run {read_counters(first).id} of ")
    stored = fusebench("ncu", "--from", Path(document["run"]).name)
    assert "+33.3 %" in stored.stdout, "the base is part of the record"


def test_a_folder_of_kernels_is_the_base(fusebench: Fusebench, project: Path, fake_ncu: Any, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(project / "kernels", old, ignore=shutil.ignore_patterns("__pycache__"))
    add_kernel(project, "twin", version=2, body="'changed'")
    add_kernel(project, "fresh")
    outcome = fusebench(*SELECTION, "--base-kernels", str(old))
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    run = record(project)
    assert [(capture.kernel, capture.revision) for capture in run.captures] == [
        ("scale/fast@2", ""),
        ("scale/fresh@1", ""),
        ("scale/twin@1", ""),
        ("scale/twin@2", ""),
        ("scale/twin@2", "base"),
    ]
    assert any("scale/twin@1 is made of the same files in both revisions" in warning for warning in run.warnings)
    assert any("scale/fresh@1" in warning and "new" in warning for warning in run.warnings)
    assert run.base == f"folder {old}"
    assert "base: folder" in outcome.stdout


def test_a_commit_is_the_base(fusebench: Fusebench, project: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)

    git("init")
    git("add", "-A")
    git("commit", "-m", "first")
    add_kernel(project, "twin", version=2, body="'changed'")
    outcome = fusebench(*SELECTION, "--kernel", "twin@2", "--base", "HEAD")
    assert outcome.exit_code == ExitCode.PASS, outcome.stderr
    run = record(project)
    assert [capture.revision for capture in run.captures] == ["", "base"]
    assert run.base.startswith("commit ")
