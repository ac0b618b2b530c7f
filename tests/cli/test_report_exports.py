"""`fusebench report --format` for the formats of other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fusebench.report.exports import FORMATS


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "pytest-benchmark"])
def test_every_export_goes_to_stdout_or_to_a_file(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path, form: str
) -> None:
    keep(run_id="r1", cases=("flux_1024",))
    shown = fusebench("report", "r1", "--format", form)
    assert (shown.exit_code, "qknorm_rope/fused_triton@2[qknorm_rope:flux_1024]" in shown.stdout) == (0, True), shown.output
    written = fusebench("report", "r1", "--format", form, "--out", "deep/export.csv")
    assert (written.exit_code, written.stdout) == (0, "")
    assert (project_folder / "deep" / "export.csv").read_text() == shown.stdout
    assert (project_folder / "deep" / "export.yaml").exists() == (form == "otava")


def test_an_export_without_the_samples_that_it_needs_is_refused(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    (keep(run_id="r1", cases=("flux_1024",)) / "samples.parquet").unlink(missing_ok=True)
    refused = fusebench("report", "r1", "--format", "pytest-benchmark", "--out", "out.json")
    assert (refused.exit_code, "samples.parquet" in refused.stderr) == (2, True), refused.output
    assert not Path("out.json").exists()
