"""A run of counters on disk: read back as it was written, refused where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fusebench.counters.records import Capture, CaptureStatus, CounterRun, Launch
from fusebench.errors import RunRecordError
from fusebench.schema import Case, Environment, Role
from fusebench.store.counter_folder import COUNTERS_FILE, keep_counters, read_counters, write_counters


def record() -> CounterRun:
    launch = Launch(name="f", grid=(2, 1, 1), block=(128, 1, 1), metrics={"gpu__time_duration.sum": 23072.0})
    return CounterRun(
        id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench ncu", ncu_version="2025.3.1.0", metric_set="quick",
        metrics=("gpu__time_duration.sum",), cache_control="all", clock_control="none",
        environment=Environment(device="cuda", device_name="Toy", python="3.12", platform="x", fusebench="0"),
        cases=(Case(suite="s", name="c", op="scale", params={"size": 8}),),
        captures=(
            Capture(
                case="c", suite="s", op="scale", kernel="scale/a@1", role=Role.FUSED, shape="8", status=CaptureStatus.CAPTURED,
                minimum_bytes=64, launches=(launch,), report="01.ncu-rep", seconds=3.5,
            ),
        ),
    )  # fmt: skip


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "01.ncu-rep").write_bytes(b"NVR\0")
    return folder


def test_what_is_written_is_read_back(tmp_path: Path, reports: Path) -> None:
    folder = write_counters(tmp_path / "runs", record(), reports, "# report\n")
    assert folder.name == "20260727T072547Z_abcd1234_ncu"
    assert sorted(file.name for file in folder.iterdir()) == ["01.ncu-rep", "ncu.json", "report.md"]
    assert (folder / "01.ncu-rep").read_bytes() == b"NVR\0"
    assert read_counters(folder) == record()
    assert read_counters(folder / COUNTERS_FILE) == record()


def test_a_run_in_progress_is_a_readable_record_after_every_case(tmp_path: Path, reports: Path) -> None:
    begun = msgspec.structs.replace(record(), captures=())
    folder = keep_counters(tmp_path / "runs", begun, reports)
    assert read_counters(folder) == begun
    assert keep_counters(tmp_path / "runs", record(), reports) == folder
    assert read_counters(folder) == record()
    assert (folder / "01.ncu-rep").read_bytes() == b"NVR\0"


def test_a_run_is_never_overwritten(tmp_path: Path, reports: Path) -> None:
    write_counters(tmp_path, record(), reports, "")
    with pytest.raises(RunRecordError, match="exists already"):
        write_counters(tmp_path, record(), reports, "")


def test_a_missing_report_leaves_no_half_a_folder(tmp_path: Path, reports: Path) -> None:
    (reports / "01.ncu-rep").unlink()
    with pytest.raises(RunRecordError, match=r"01.ncu-rep: cannot be copied"):
        write_counters(tmp_path / "runs", record(), reports, "")
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_is_no_record_is_refused(tmp_path: Path, reports: Path) -> None:
    with pytest.raises(RunRecordError, match="expected the folder of a `fusebench ncu`"):
        read_counters(tmp_path)
    file = write_counters(tmp_path, record(), reports, "") / COUNTERS_FILE
    content = file.read_text()
    file.write_text(json.dumps(json.loads(content) | {"version": 99}))
    with pytest.raises(RunRecordError, match="version 99 is newer"):
        read_counters(file.parent)
    file.write_text(content[: len(content) // 2])
    with pytest.raises(RunRecordError, match="not a record of `fusebench ncu`"):
        read_counters(file.parent)
