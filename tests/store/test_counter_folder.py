"""A run of counters on disk: read back as it was written, refused where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.store.counter_folder import keep_counters, read_counters
from fusebench.store.finding import COUNTERS_FILE
from helpers.synthetic_records import counters as record


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "01.ncu-rep").write_bytes(b"NVR\0")
    return folder


def test_what_is_written_is_read_back(tmp_path: Path, reports: Path) -> None:
    folder = keep_counters(tmp_path / "runs", record(), reports)
    assert folder.name == "20260727T072547Z_abcd1234_ncu"
    assert sorted(file.name for file in folder.iterdir()) == ["01.ncu-rep", "ncu.json"]
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


def test_a_missing_report_leaves_no_half_a_folder(tmp_path: Path, reports: Path) -> None:
    (reports / "01.ncu-rep").unlink()
    with pytest.raises(RunRecordError, match=r"01.ncu-rep: cannot be copied"):
        keep_counters(tmp_path / "runs", record(), reports)
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_is_no_record_is_refused(tmp_path: Path, reports: Path) -> None:
    with pytest.raises(RunRecordError, match="expected the folder of a `fusebench ncu`"):
        read_counters(tmp_path)
    file = keep_counters(tmp_path, record(), reports) / COUNTERS_FILE
    content = file.read_text()
    file.write_text(json.dumps(json.loads(content) | {"version": 99}))
    with pytest.raises(RunRecordError, match="version 99 is newer"):
        read_counters(file.parent)
    file.write_text(content[: len(content) // 2])
    with pytest.raises(RunRecordError, match="not a record that `fusebench ncu` wrote"):
        read_counters(file.parent)
