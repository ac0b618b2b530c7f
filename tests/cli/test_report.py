from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

_fixtures = runpy.run_path(str(Path(__file__).with_name("run_fixtures.py")))
keep, project_folder, synthetic = (_fixtures[name] for name in ("keep", "project_folder", "synthetic"))


@pytest.mark.parametrize(
    ("form", "start"), [("md", "# NVIDIA H200"), ("html", "<!doctype html>"), ("junit", "<?xml"), ("github", "::notice")]
)
def test_every_form_can_be_written_from_the_record(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path, form: str, start: str
) -> None:
    keep(run_id="r1", cases=("flux_1024",))
    shown = fusebench("report", "r1", "--format", form)
    assert (shown.exit_code, shown.stdout.startswith(start)) == (0, True)
    written = fusebench("report", "r1", "--format", form, "--out", "deep/report.txt")
    assert (written.exit_code, written.stdout) == (0, "")
    assert (project_folder / "deep" / "report.txt").read_text() == shown.stdout


def test_an_unknown_form_and_an_unwritable_file_are_refused(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path
) -> None:
    keep(run_id="r1", cases=("flux_1024",))
    assert fusebench("report", "r1", "--format", "pdf").exit_code == 2
    (project_folder / "file").touch()
    refused = fusebench("report", "r1", "--out", "file/report.md")
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (2, True)
