"""Every export is what its reader takes: pytest-benchmark's own command, and the published fields of the others."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.config import Project
from fusebench.errors import RunRecordError
from fusebench.report.exports import FORMATS, export
from fusebench.report.exports.series import exported
from fusebench.report.exports.trackers import bencher, github_action_benchmark, pytorch_oss
from fusebench.schema import Estimate, Run, Sample, Status
from fusebench.store.run_folder import write_run

CASES = ("flux_1024", "zimage_1024")


def samples_of(run: Run, count: int = 9) -> list[Sample]:
    return [
        Sample(
            case=result.case_key,
            arm=result.kernel,
            replicate=0,
            round=index,
            position=0,
            span_ns=round(result.measurement.time_us.value * 1000) + index,
            busy_ns=1000,
            kernels=1,
        )
        for result in run.results
        if result.measurement is not None
        for index in range(count)
    ]


@pytest.fixture
def run(synthetic: ModuleType) -> Run:
    return synthetic.make_run(cases=CASES, environment={"device_name": "NVIDIA\x1b[31m H200"})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(root=tmp_path, kernels=(), suites=(), results=tmp_path)


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs", run, samples_of(run))


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "otava"])
def test_json_holds_no_number_that_json_lacks_and_no_control_character(
    form: str, run: Run, folder: Path, project: Project, synthetic: ModuleType
) -> None:
    unbounded = Estimate(30.0, 0.0, math.inf)
    changed = [
        msgspec.structs.replace(
            result, measurement=msgspec.structs.replace(result.measurement, time_us=unbounded, sol=math.nan, gb_per_s=math.inf)
        )
        for result in run.results
    ]
    text = export(form, msgspec.structs.replace(run, results=changed), folder, project).text

    def refuse(name: str) -> None:
        raise AssertionError(f"{form} holds {name}")

    json.loads(text, parse_constant=refuse)
    assert "\x1b" not in text
    assert "\\u001b" not in text


def test_github_action_benchmark_has_the_fields_of_custom_smaller_is_better(run: Run, synthetic: ModuleType) -> None:
    entries = json.loads(github_action_benchmark(run))
    assert len({entry["name"] for entry in entries}) == len(entries) == 2 * 6
    for entry in entries:
        assert entry.keys() <= {"name", "unit", "value", "range", "extra"}
        assert (entry["unit"], type(entry["value"])) == ("us", float)
        assert all(isinstance(entry[name], str) for name in ("name", "range", "extra"))
    fused = next(entry for entry in entries if entry["name"] == f"{synthetic.FUSED}[qknorm_rope:flux_1024]")
    assert fused["value"] == pytest.approx(28.08)
    assert fused["range"] == "± 0.113"
    assert "speedup: 1.898x [1.891, 1.906]" in fused["extra"].splitlines()


def test_bencher_has_nanoseconds_with_their_interval(run: Run, synthetic: ModuleType) -> None:
    """Its schema: any benchmark, any measure, numbers `value` (required), `lower_value`, `upper_value`; names of limited length."""
    document = json.loads(bencher(run))
    assert all(len(name) <= 1024 for name in document)
    for measures in document.values():
        assert measures.keys() <= {"latency", "speedup", "share-of-limit"}
        for metric in measures.values():
            assert {"value"} <= metric.keys() <= {"value", "lower_value", "upper_value"}
            assert all(isinstance(value, float) for value in metric.values())
            assert metric.get("lower_value", 0.0) <= metric["value"] <= metric.get("upper_value", math.inf)
    latency = document[f"{synthetic.FUSED}[qknorm_rope:flux_1024]"]["latency"]
    assert latency == pytest.approx({"value": 28080.0, "lower_value": 28080 * math.exp(-0.004), "upper_value": 28080 * math.exp(0.004)})


PYTORCH_V3: dict[str, Any] = {
    "benchmark": {"name": str, "mode": str, "dtype": str, "extra_info": {str: str}},
    "model": {"name": str, "type": str, "backend": str, "origins": [str], "extra_info": {str: str}},
    "inputs": {str: {"dtype": str, "extra_info": {str: str}}},
    "dependencies": {str: {"repo": str, "branch": str, "sha": str, "version": str, "extra_info": {str: str}}},
    "metric": {"name": str, "benchmark_values": [float], "target_value": float, "extra_info": {str: str}},
    "runners": [
        {
            "name": str,
            "type": str,
            "cpu_info": str,
            "cpu_count": int,
            "mem_info": str,
            "avail_mem_in_gb": int,
            "gpu_info": str,
            "gpu_count": int,
            "gpu_mem_info": str,
            "avail_gpu_mem_in_gb": int,
            "extra_info": {str: str},
        }
    ],
}
"""Columns of the table `oss_ci_benchmark_v3` that a benchmark fills in; a missing one takes its column's default."""


def fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(one, kind[0]) for one in value)
    if kind == {str: str} or (isinstance(kind, dict) and str in kind):
        return isinstance(value, dict) and all(isinstance(name, str) and fits(one, kind[str]) for name, one in value.items())
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(name in kind and fits(one, kind[name]) for name, one in value.items())
    return type(value) is kind


def test_pytorch_records_fit_version_three_of_its_table(run: Run, synthetic: ModuleType) -> None:
    records = json.loads(pytorch_oss(run))
    assert [record for record in records if not fits(record, PYTORCH_V3)] == []
    assert not fits({"metric": {"name": 1}}, PYTORCH_V3), "the check sees a wrong type"
    assert not fits({"metrics": {}}, PYTORCH_V3), "and an unknown column"
    assert {record["metric"]["name"] for record in records} == {"time_us", "speedup", "share_of_limit"}
    times = [record for record in records if record["metric"]["name"] == "time_us"]
    assert len(times) == 12
    assert {record["metric"]["extra_info"]["unit"] for record in times} == {"us"}
    fused = next(record for record in times if record["model"]["name"].startswith(f"{synthetic.FUSED}[qknorm_rope:flux"))
    assert fused["metric"]["benchmark_values"] == pytest.approx([28.08])
    assert fused["model"]["backend"] == "triton"


def test_pytest_benchmark_compares_two_exports(run: Run, folder: Path, project: Project, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(export("pytest-benchmark", run, folder, project).text)
    shown = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", "one.json", "two.json", "--columns=min,median,rounds", "--sort=name"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, "Failed to load" in shown.stderr) == (0, False), shown.stderr
    rows = [line for line in shown.stdout.splitlines() if line.startswith("qknorm_rope/fused_triton@2[qknorm_rope:flux_1024]")]
    assert len(rows) == 2
    assert all("28.08" in row and row.split()[-1] == "9" for row in rows), "microseconds of nine calls"


def test_pytest_benchmark_counts_the_fresh_processes_of_a_suspect_alone(
    run: Run, folder: Path, project: Project, tmp_path: Path, synthetic: ModuleType
) -> None:
    suspect = [msgspec.structs.replace(run.cases[0], suspicion="slower"), *run.cases[1:]]
    again = [msgspec.structs.replace(one, process=1, span_ns=one.span_ns * 2) for one in samples_of(run, 5)]
    remeasured = msgspec.structs.replace(run, id="r2", cases=suspect)
    where = write_run(tmp_path / "runs", remeasured, [*samples_of(run), *again])
    entries = json.loads(export("pytest-benchmark", remeasured, where, project).text)["benchmarks"]
    rounds = {entry["group"]: entry["stats"]["rounds"] for entry in entries}
    assert rounds == {"qknorm_rope:flux_1024": 5, "qknorm_rope:zimage_1024": 14}


def test_pytest_benchmark_needs_the_samples(run: Run, folder: Path, project: Project) -> None:
    (folder / "samples.parquet").unlink()
    with pytest.raises(RunRecordError, match=r"samples\.parquet"):
        export("pytest-benchmark", run, folder, project)


def test_otava_reads_a_row_per_comparable_run_and_no_empty_cell(synthetic: ModuleType, project: Project, tmp_path: Path) -> None:
    """Its importer takes a header, a time column that it can parse, numbers in every column of a metric, and one branch."""
    nights = synthetic.make_history(4, cases=CASES)
    gap = msgspec.structs.replace(nights[1], results=[one for one in nights[1].results if one.kernel != synthetic.FUSED])
    other = synthetic.make_run(run_id="other", cases=CASES, environment={"device_name": "NVIDIA B200"}, created=nights[0].created)
    folders = [write_run(tmp_path / "runs", one, []) for one in (nights[0], gap, nights[2], nights[3], other)]
    found = export("otava", nights[2], folders[2], project, out=tmp_path / "runs.csv")
    header, *rows = list(csv.reader(found.text.splitlines()))
    assert header[:4] == ["time", "commit", "run", "branch"]
    assert [row[2] for row in rows] == ["n000", "n001", "n002"], "the run itself and the earlier ones"
    assert {row[3] for row in rows} == {"main"}
    times = [datetime.fromisoformat(row[0]) for row in rows]
    assert times == sorted(times)
    assert all(len(row) == len(header) and all(float(cell) > 0 for cell in row[4:]) for row in rows)
    assert not any(name.startswith(synthetic.FUSED) for name in header)
    assert any("left out 2 of 12 series" in note for note in found.notes)
    assert any("NVIDIA B200" in note for note in found.notes)
    test = json.loads(found.beside[".yaml"])["tests"]["fusebench"]
    assert (test["type"], test["file"], test["time_column"], test["attributes"]) == ("csv", "runs.csv", "time", ["commit", "run"])
    assert list(test["metrics"]) == header[4:]
    assert {(metric["direction"], metric["column"] in header) for metric in test["metrics"].values()} == {(-1, True)}


def test_times_that_contradict_their_label_and_kernels_without_a_time_are_left_out(synthetic: ModuleType) -> None:
    status = {("flux_1024", synthetic.FUSED): (Status.CRASHED, "boom")}
    run = synthetic.make_run(cases=CASES, status=status)
    warm = [run.cases[0], msgspec.structs.replace(run.cases[1], not_cold="warm")]
    assert len(exported(msgspec.structs.replace(run, cases=warm))) == 5
    nothing = msgspec.structs.replace(run, cases=[msgspec.structs.replace(one, not_cold="warm") for one in run.cases])
    with pytest.raises(RunRecordError, match="nothing to export"):
        exported(nothing)
