from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result


@pytest.mark.usefixtures("project_folder")
def test_show_without_baselines_says_so(fusebench: Callable[..., Result]) -> None:
    result = fusebench("baseline", "show")
    assert (result.exit_code, "no baselines in" in result.stdout) == (0, True)
    assert json.loads(fusebench("baseline", "show", "--json").stdout) == []


def test_a_promoted_run_is_kept_with_report_and_plot(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path
) -> None:
    keep(run_id="r1")
    assert fusebench("baseline", "promote", "latest").exit_code == 0
    folder = project_folder / "results" / "baselines" / "nvidia_h200"
    tables = ["cases.parquet", "kernels.parquet", "report.md", "results.parquet"]
    assert sorted(path.name for path in folder.iterdir()) == [*tables, "run.json", "samples.parquet", "speedup.png"]
    (row,) = json.loads(fusebench("baseline", "show", "--json").stdout)
    assert (row["device"], row["run"], row["objections"]) == ("NVIDIA H200", "r1", [])
    assert row["weighted_speedup"]["qknorm_rope"] == pytest.approx(1.898, abs=0.001)
    assert "qknorm_rope 1.898x" in fusebench("baseline", "show").stdout


def test_force_promotes_and_prints_what_speaks_against_it(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    keep(run_id="r1", complete=False)
    refused = fusebench("baseline", "promote", "r1")
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    forced = fusebench("baseline", "promote", "r1", "--force")
    assert (forced.exit_code, "warning: promoted although it is incomplete" in forced.stderr) == (0, True)
    assert "incomplete" in fusebench("baseline", "show").stdout
