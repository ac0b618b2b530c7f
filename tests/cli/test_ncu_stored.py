"""`fusebench ncu --from`: runs and reports that are stored, shown again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome

from fusebench.device import nvml as nvml_backend
from fusebench.schema import ExitCode
from helpers import ncu_bench
from helpers.ncu_bench import SELECTION, only_run, record

Fusebench = Callable[..., Outcome]

project = ncu_bench.project


def test_a_stored_run_is_shown_again_on_any_machine(fusebench: Fusebench, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fusebench(*SELECTION).stdout
    monkeypatch.setenv("FUSEBENCH_NCU", "/nowhere/ncu")
    monkeypatch.setattr(nvml_backend, "open_monitor", lambda: pytest.fail("no GPU is asked for"))
    shown = fusebench("ncu", "--from", "latest")
    assert (shown.exit_code, f"{shown.stdout}run: {only_run(project)}\n") == (ExitCode.PASS, first)
    assert len(list((project / "results" / "runs").iterdir())) == 1, "nothing is written"
    report = fusebench("report", str(only_run(project)))
    assert (report.exit_code, report.stdout) == (ExitCode.PASS, (only_run(project) / "report.md").read_text())
    by_id = fusebench("report", record(project).id)
    assert by_id.stdout == report.stdout
    assert fusebench("report", record(project).id, "--format", "html").exit_code == ExitCode.USAGE


def test_further_metrics_are_read_from_stored_reports(fusebench: Fusebench, project: Path) -> None:
    assert fusebench(*SELECTION, "--set", "quick").exit_code == ExitCode.PASS
    name = "smsp__warps_eligible.avg.per_cycle_active"
    shown = fusebench("ncu", "--from", "latest", "--metrics", name)
    assert shown.exit_code == ExitCode.PASS, shown.stderr
    assert sum(name in line for line in shown.stdout.splitlines()) == 3
    one = fusebench("ncu", "--from", str(only_run(project) / "02_even_twin_v1.ncu-rep"), "--json")
    captures = json.loads(one.stdout)["record"]["captures"]
    assert [capture["kernel"] for capture in captures] == ["scale/twin@1"]
    assert name in captures[0]["launches"][0]["metrics"], "the full set, from the report"


def test_a_report_file_that_is_none_is_refused(fusebench: Fusebench, project: Path) -> None:
    (project / "made_up.ncu-rep").write_text("no report")
    outcome = fusebench("ncu", "--from", "made_up.ncu-rep")
    assert (outcome.exit_code, "not an Nsight Compute report" in outcome.stderr) == (ExitCode.USAGE, True)
    fusebench(*SELECTION, "--kernel", "twin@1")
    shutil.copy(only_run(project) / "01_even_twin_v1.ncu-rep", project / "stray.ncu-rep")
    outcome = fusebench("ncu", "--from", "stray.ncu-rep")
    assert (outcome.exit_code, "no ncu.json lies beside it" in outcome.stderr) == (ExitCode.USAGE, True)
    outcome = fusebench("ncu", "--from", "nowhere/at_all")
    assert (outcome.exit_code, "expected the folder of a `fusebench ncu`" in outcome.stderr) == (ExitCode.USAGE, True)
