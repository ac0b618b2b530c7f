"""`ci/nightly` and `ci/pull_request` as a CI system calls them, on recorded runs: everything but measuring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import msgspec
import pytest

from fusebench.schema import Estimate, Result, Run
from fusebench.store.baselines import promote
from fusebench.store.history_file import read_history_file
from fusebench.store.run_folder import write_run
from helpers.matrices import few

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`script("nightly", …)` in a copy of `ci/` beside a project of its own, as on GitHub."""
    root = tmp_path / "project"
    (root / "ci").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool.fusebench]\n")

    def call(name: str, *arguments: str, root: Path = root) -> subprocess.CompletedProcess[str]:
        copy = root / "ci" / name
        if not copy.exists():
            copy.write_bytes((REPOSITORY / "ci" / name).read_bytes())
        environment = os.environ | {"FUSEBENCH": f"{sys.executable} -m fusebench", "GITHUB_ACTIONS": "true"}
        environment["PYTHONPATH"] = str(REPOSITORY / "harness")
        return subprocess.run(["bash", str(copy), *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    return call


def test_a_dry_night_without_a_baseline_is_undecided_and_with_one_finds_the_planted_regression(
    script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, synthetic: ModuleType
) -> None:
    results, out = tmp_path / "project" / "results", tmp_path / "out"
    good = synthetic.make_run(run_id="good", cases=("flux_1024",))
    slow = synthetic.make_run(
        run_id="slow", cases=("flux_1024",), slow={("flux_1024", synthetic.FUSED): 1.2}, created="2026-07-28T07:25:47Z"
    )
    folders = [write_run(tmp_path / "recorded", run, synthetic.make_samples(run)) for run in (good, slow)]
    shown = script("nightly", "--dry-run", "--recorded", str(folders[0]), "--out", str(out))
    assert (shown.returncode, "no baseline" in shown.stdout) == (4, True), shown.stderr
    assert not (out / "issue.md").exists()
    promote(folders[0], results)
    shown = script("nightly", "--dry-run", "--recorded", str(folders[1]), "--out", str(out))
    assert shown.returncode == 1, shown.stderr
    assert "::error title=qknorm_rope/fused_triton@2 on qknorm_rope%3Aflux_1024%3A regression::" in shown.stdout
    assert (out / "issue.md").read_text().startswith("# Nightly on NVIDIA H200: qknorm_rope/fused_triton@2 slower or less accurate\n")
    assert ElementTree.parse(out / "junit.xml").getroot().findall("testsuite/testcase/failure")
    outcome = json.loads((out / "outcome.json").read_text())
    assert (outcome["exit_code"], outcome["dry"], outcome["device"]) == (1, True, "NVIDIA H200")
    assert {"report.md", "report.html", "summary.md", "annotations.txt"} <= {file.name for file in out.iterdir()}
    shown = script("nightly", "--dry-run", "--recorded", str(folders[0]), "--out", str(out))
    assert shown.returncode == 0, shown.stderr
    assert not (out / "issue.md").exists(), "a stale issue is not posted"


def test_a_night_without_a_gpu_ends_with_its_exit_code_and_a_line(
    script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    shown = script("nightly", "--device", "cuda:99", "--suite", "smoke", "--wait", "0", "--out", str(tmp_path / "out"))
    assert shown.returncode in (2, 3)
    assert "no run: " in shown.stdout


def slowed(run: Run, share: float) -> Run:
    """The run with the fused Triton kernel of QK-norm slower by this share, and of other machine code."""

    def slower(one: Result) -> Result:
        timing = one.measurement
        if timing is None or one.kernel != "qknorm_rope/fused_triton@2":
            return one
        time = Estimate(*((1 + share) * end for end in (timing.time_us.value, timing.time_us.low, timing.time_us.high)))
        return msgspec.structs.replace(one, code="another", measurement=msgspec.structs.replace(timing, time_us=time))

    return msgspec.structs.replace(run, results=[slower(one) for one in run.results])


@pytest.mark.parametrize(("share", "code", "said"), few([(0.0, 4, "undecided"), (0.2, 1, "fused_triton@2")], (0.2, 1, "fused_triton@2")))
def test_a_recorded_night_of_an_h200_ends_as_its_gate_does(tmp_path: Path, share: float, code: int, said: str) -> None:
    """The repository's own script, results and baseline; a night as it was recorded, which lacks newer kernels, and with a slower one."""
    history = REPOSITORY / "results" / "history" / "nvidia_h200.op_mix.parquet"
    (night,) = [run for run in read_history_file(history) if run.id == "2aac7247"]
    folder = write_run(tmp_path / "runs", slowed(night, share) if share else night, [])
    environment = os.environ | {"FUSEBENCH": f"{sys.executable} -m fusebench", "PYTHONPATH": str(REPOSITORY / "harness")}
    command = ["bash", str(REPOSITORY / "ci" / "nightly"), "--dry-run", "--recorded", str(folder), "--out", str(tmp_path / "out")]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == code, shown.stderr
    assert said in (tmp_path / "out" / "summary.md").read_text()
    assert (tmp_path / "out" / "issue.md").exists() == (code == 1)


def test_a_pull_requests_settings_are_checked_first(script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    shown = script("pull_request", "--base", "main", "--out", str(tmp_path / "out"))
    assert (shown.returncode, "pull_request.toml: no such file" in shown.stderr) == (2, True)
    (tmp_path / "project" / ".fusebench").mkdir()
    (tmp_path / "project" / ".fusebench" / "pull_request.toml").write_text('suites = ["a"]\ngpus = "h200"\n')
    shown = script("pull_request", "--base", "main", "--out", str(tmp_path / "out"))
    assert (shown.returncode, ".fusebench/pull_request.toml:2: gpus: found 'h200' (string), expected array" in shown.stderr) == (2, True)
