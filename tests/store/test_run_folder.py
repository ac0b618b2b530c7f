from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import SCHEMA_VERSION, Estimate, ExitCode, Sample
from fusebench.store import run_folder
from fusebench.store.record_files import encode_record
from fusebench.store.run_folder import RUN_FILE, SAMPLES_FILE, decode_run, read_run, read_samples, sample_values, write_run


@pytest.fixture
def folder(tmp_path: Path, synthetic: ModuleType) -> Path:
    run = synthetic.make_run()
    return write_run(tmp_path / "runs", run, synthetic.make_samples(run))


def test_what_was_written_is_read_back(folder: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    assert folder.name == "20260727T072547Z_r1"
    assert sorted(path.name for path in folder.iterdir()) == [RUN_FILE, SAMPLES_FILE]
    assert read_run(folder) == run
    assert read_run(folder / RUN_FILE) == run
    frame = read_samples(folder)
    samples = synthetic.make_samples(run)
    assert list(frame.columns) == list(Sample.__struct_fields__)
    assert [msgspec.convert(list(row), Sample) for row in frame.itertuples(index=False)] == samples


def test_a_run_without_samples_can_be_kept(tmp_path: Path, synthetic: ModuleType) -> None:
    assert len(read_samples(write_run(tmp_path, synthetic.make_run(), []))) == 0


def test_samples_from_before_there_was_more_than_one_process_are_those_of_the_first(folder: Path) -> None:
    import pyarrow.parquet

    file = folder / SAMPLES_FILE
    table = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(table.drop_columns(["process"]), file)
    frame = read_samples(folder)
    assert len(frame) == len(table) > 0
    assert set(frame.process) == {0}
    assert {sample.process for sample in sample_values(folder)} == {0}
    pyarrow.parquet.write_table(table.drop_columns(["process", "round"]), file)
    with pytest.raises(RunRecordError, match="lacks the columns round;"):
        read_samples(folder)


def test_measurements_from_before_they_named_their_processes_are_of_one(folder: Path) -> None:
    record = json.loads((folder / RUN_FILE).read_text())
    for result in record["results"]:
        assert result["measurement"].pop("processes") == 1
    (folder / RUN_FILE).write_text(json.dumps(record))
    assert {result.measurement.processes for result in read_run(folder).results if result.measurement is not None} == {1}


def test_infinite_and_undefined_figures_survive_and_stay_json(synthetic: ModuleType) -> None:
    run = synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED])
    result = run.results[0]
    wrong = msgspec.structs.replace(result.accuracy, rms_error=math.nan, max_error=math.inf, reason="inf")
    timing = msgspec.structs.replace(result.measurement, time_us=Estimate(30.0, 0.0, math.inf))
    run = synthetic.change_results(run, accuracy=wrong, measurement=timing)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    content = encode_record(run)
    json.loads(content, parse_constant=refuse)
    back = decode_run(content, "here").results[0]
    assert math.isnan(back.accuracy.rms_error)
    assert (back.accuracy.max_error, back.accuracy.reason) == (math.inf, "inf")
    assert back.measurement.time_us == Estimate(30.0, 0.0, math.inf)


def test_a_run_is_never_overwritten(folder: Path, synthetic: ModuleType) -> None:
    before = (folder / RUN_FILE).read_bytes()
    with pytest.raises(RunRecordError, match="never overwritten"):
        write_run(folder.parent, synthetic.make_run(command="another"), [])
    assert (folder / RUN_FILE).read_bytes() == before


def test_a_write_that_fails_midway_leaves_nothing(tmp_path: Path, synthetic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(run_folder, "write_samples", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_run(tmp_path / "runs", synthetic.make_run(), [])
    assert list((tmp_path / "runs").iterdir()) == []


def refused(folder: Path) -> str:
    with pytest.raises(RunRecordError) as caught:
        read_run(folder)
    assert caught.value.exit_code is ExitCode.USAGE
    return str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "absent")
    assert "not a run folder" in refused(tmp_path)
    (tmp_path / "file").touch()
    assert "not a run folder" in refused(tmp_path / "file")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_record_is_refused(folder: Path, share: float) -> None:
    content = (folder / RUN_FILE).read_bytes()
    (folder / RUN_FILE).write_bytes(content[: int(len(content) * share)].rstrip())
    assert "truncated or garbled" in refused(folder)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00 not text", b"[1, 2", b"{]"])
def test_a_garbled_record_is_refused(folder: Path, content: bytes) -> None:
    (folder / RUN_FILE).write_bytes(content)
    assert "garbled" in refused(folder)


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"schema_version": "one"}', b"null"])
def test_other_json_is_no_run_record(folder: Path, content: bytes) -> None:
    (folder / RUN_FILE).write_bytes(content)
    assert "not a run record" in refused(folder)


def test_a_newer_schema_is_refused_with_both_versions(folder: Path) -> None:
    # Of a newer record nothing but the version may be relied on.
    (folder / RUN_FILE).write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1, "results": "now elsewhere"}))
    message = refused(folder)
    assert f"schema version {SCHEMA_VERSION + 1}" in message
    assert f"up to {SCHEMA_VERSION}" in message
    assert "upgrade" in message


def test_a_record_that_does_not_fit_its_schema_names_the_field(folder: Path) -> None:
    record = json.loads((folder / RUN_FILE).read_text())
    record["results"][3]["role"] = "fastest"
    (folder / RUN_FILE).write_text(json.dumps(record))
    message = refused(folder)
    assert "$.results[3].role" in message
    assert "fastest" in message


def test_truncated_or_missing_samples_are_refused(folder: Path) -> None:
    content = (folder / SAMPLES_FILE).read_bytes()
    (folder / SAMPLES_FILE).write_bytes(content[:-20])
    with pytest.raises(RunRecordError, match="truncated or garbled"):
        read_samples(folder)
    (folder / SAMPLES_FILE).unlink()
    with pytest.raises(RunRecordError, match=r"samples\.parquet: missing"):
        read_samples(folder)


def test_samples_without_a_column_are_refused(folder: Path) -> None:
    import pandas as pd

    pd.DataFrame({"case": ["a"], "arm": ["b"]}).to_parquet(folder / SAMPLES_FILE)
    with pytest.raises(RunRecordError, match="lacks the columns replicate"):
        read_samples(folder)


def test_a_creation_time_that_is_none_is_refused(tmp_path: Path, synthetic: ModuleType) -> None:
    with pytest.raises(RunRecordError, match="ISO 8601"):
        write_run(tmp_path, synthetic.make_run(created="yesterday"), [])
