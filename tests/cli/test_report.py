from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result

from fusebench.store.run_folder import RUN_FILE, SAMPLES_FILE, TABLE_FILES, read_run


@pytest.mark.parametrize(
    ("form", "start"), [("md", "# Measured: "), ("html", "<!doctype html>"), ("junit", "<?xml"), ("github", "::notice")]
)
def test_every_form_can_be_written_from_the_record(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path, form: str, start: str
) -> None:
    keep(run_id="r1", cases=("flux_1024",))
    shown = fusebench("report", "r1", "--format", form)
    assert (shown.exit_code, shown.stdout.startswith(start)) == (0, True)
    assert fusebench("report", "--format", form).stdout == shown.stdout, "the latest run unless one is named"
    written = fusebench("report", "r1", "--format", form, "--out", "deep/report.txt")
    assert (written.exit_code, written.stdout) == (0, "")
    # Links to raw data are relative to the page; on stdout, to the run's folder.
    kept = (project_folder / "deep" / "report.txt").read_text().replace("../results/runs/20260727T072547Z_r1/", "")
    assert kept == shown.stdout


def test_an_unknown_form_and_an_unwritable_file_are_refused(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path
) -> None:
    keep(run_id="r1", cases=("flux_1024",))
    assert fusebench("report", "r1", "--format", "pdf").exit_code == 2
    (project_folder / "file").touch()
    refused = fusebench("report", "r1", "--out", "file/report.md")
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (2, True)


def test_no_page_is_written_over_a_record_or_in_the_place_of_a_folder(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path
) -> None:
    folder = keep(run_id="r1", cases=("flux_1024",)).relative_to(project_folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in (RUN_FILE, SAMPLES_FILE, TABLE_FILES[0]):
        refused = fusebench("report", "r1", "--format", "html", "--out", str(folder / name))
        assert (refused.exit_code, "belongs to the record in" in refused.stderr) == (2, True), refused.output
    kept = fusebench("history", str(folder), "--keep", str(folder / SAMPLES_FILE))
    assert (kept.exit_code, "belongs to the record in" in kept.stderr) == (2, True), kept.output
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert fusebench("report", "r1", "--out", str(folder / "page.md")).exit_code == 0, "beside the record there is room"
    for name in (".", "..", "results"):
        refused = fusebench("report", "r1", "--out", name)
        assert (refused.exit_code, "it is a folder; name a file in it" in refused.stderr) == (2, True), refused.output


def test_the_record_of_an_older_fusebench_is_converted_into_a_new_folder(
    keep: Callable[..., Path], fusebench: Callable[..., Result], project_folder: Path, synthetic: ModuleType
) -> None:
    folder = keep(run_id="r1")
    run, samples = read_run(folder), (folder / SAMPLES_FILE).read_bytes()
    synthetic.as_version_2(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    converted = fusebench("report", "r1", "--format", "record", "--out", "converted")
    assert (converted.exit_code, f"wrote converted/{folder.name}" in converted.stderr) == (0, True), converted.output
    made = project_folder / "converted" / folder.name
    assert (read_run(made), (made / SAMPLES_FILE).read_bytes()) == (run, samples)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    again = fusebench("report", "r1", "--format", "record", "--out", "converted")
    assert (again.exit_code, "never overwritten" in again.stderr) == (2, True)
    nowhere = fusebench("report", "r1", "--format", "record")
    assert (nowhere.exit_code, "--out DIR" in nowhere.stderr) == (2, True)


FORMS = ("md", "html", "junit", "github", "pages", "plots", "limits")


def plant(record: Path, figure: Any, *place: str | int) -> None:
    """Put `figure` at that place of a record that is one JSON file."""
    content = holder = json.loads(record.read_text())
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = figure
    record.write_text(json.dumps(content))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        *(((figure, "cases", 0, "control_ratio", "value"), "control_ratio") for figure in (0, -1, "nan")),
        ((0, "suites", 0, "baseline_us_per_step", "best_fused"), "baseline_us_per_step"),
        (({}, "suites", 0, "covered_cases"), "covered_cases"),
        (("nan", "results", 0, "measurement", "time_us", "value"), "time_us"),
    ],
)
def test_a_record_that_no_measurement_gives_is_named_and_nothing_is_written(
    keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType, *, form: str, planted: tuple[Any, ...], named: str
) -> None:
    plant(synthetic.as_version_2(keep(run_id="r1", cases=("flux_1024", "zimage_1024"))), *planted)
    refused = fusebench("report", "r1", "--format", form, "--out", "out")
    assert (refused.exit_code, refused.stderr.startswith("error: run r1 cannot be shown: ")) == (2, True), refused.output
    assert named in refused.stderr
    assert not Path("out").exists()


@pytest.mark.parametrize("form", ["md", "junit", "github"])
@pytest.mark.parametrize("planted", [(1, "results", 0, "measurement", "replicates"), ([], "results")], ids=["one replicate", "no result"])
def test_a_run_that_holds_too_little_to_be_judged_is_shown(
    keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType, form: str, planted: tuple[Any, ...]
) -> None:
    plant(synthetic.as_version_2(keep(run_id="r1", cases=("flux_1024",))), *planted)
    assert fusebench("gate", "r1", "--baseline", "r1").exit_code == 2
    shown = fusebench("report", "r1", "--format", form)
    assert shown.exit_code == 0, shown.output
