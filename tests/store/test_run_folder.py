from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import (
    SCHEMA_VERSION,
    Attachment,
    Estimate,
    ExitCode,
    OutputError,
    Run,
    Sample,
    Spending,
    Status,
    Verdict,
    VerdictKind,
)
from fusebench.store import run_folder
from fusebench.store.run_folder import (
    RUN_FILE,
    SAMPLES_FILE,
    TABLE_FILES,
    convert_run,
    folder_name,
    read_run,
    read_samples,
    sample_values,
    write_run,
)

TABLES = ("cases.parquet", "kernels.parquet", "results.parquet")


@pytest.fixture
def folder(tmp_path: Path, synthetic: ModuleType) -> Path:
    run = synthetic.make_run()
    return write_run(tmp_path / "runs", run, synthetic.make_samples(run))


def test_what_was_written_is_read_back(folder: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    assert folder.name == "20260727T072547Z_r1"
    assert sorted(path.name for path in folder.iterdir()) == [*TABLES, RUN_FILE, SAMPLES_FILE]
    assert read_run(folder) == run
    assert read_run(folder / RUN_FILE) == run
    frame = read_samples(folder)
    samples = synthetic.make_samples(run)
    assert list(frame.columns) == list(Sample.__struct_fields__)
    found = [msgspec.convert(list(row), Sample) for row in frame.itertuples(index=False)]
    assert found == sorted(samples, key=lambda one: (run_order(run, one.case), one.arm, one.process, one.replicate, one.round))


def run_order(run: Run, case: str) -> int:
    return [summary.case.key for summary in run.cases].index(case)


def test_the_results_of_a_record_are_compressed(folder: Path) -> None:
    from pyarrow.parquet import ParquetFile

    row_group = ParquetFile(folder / "results.parquet").metadata.row_group(0)
    assert {row_group.column(place).compression for place in range(row_group.num_columns)} == {"ZSTD"}


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


def test_measurements_from_before_they_named_their_processes_are_of_one(folder: Path, synthetic: ModuleType) -> None:
    file = synthetic.as_version_2(folder)
    record = json.loads(file.read_text())
    for result in record["results"]:
        assert result["measurement"].pop("processes") == 1
    file.write_text(json.dumps(record))
    assert {result.measurement.processes for result in read_run(folder).results if result.measurement is not None} == {1}


@pytest.mark.parametrize("version", [2, SCHEMA_VERSION])
def test_infinite_and_undefined_figures_survive_and_stay_json(tmp_path: Path, synthetic: ModuleType, version: int) -> None:
    run = synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.FUSED])
    result = run.results[0]
    wrong = msgspec.structs.replace(result.accuracy, rms_error=math.nan, max_error=math.inf, reason="inf")
    timing = msgspec.structs.replace(result.measurement, time_us=Estimate(30.0, 0.0, math.inf))
    run = synthetic.change_results(run, accuracy=wrong, measurement=timing)
    spent = Spending(total_s=math.inf, phases_s={"pilots": math.nan})
    state = {"during": {"power_w": -math.inf}}
    run = msgspec.structs.replace(run, spending=spent, environment=msgspec.structs.replace(run.environment, state=state))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    folder = write_run(tmp_path, run, [])
    if version == 2:
        synthetic.as_version_2(folder)
    json.loads((folder / RUN_FILE).read_text(), parse_constant=refuse)
    back = read_run(folder)
    (found,) = back.results
    assert math.isnan(found.accuracy.rms_error)
    assert (found.accuracy.max_error, found.accuracy.reason) == (math.inf, "inf")
    assert found.measurement.time_us == Estimate(30.0, 0.0, math.inf)
    assert back.spending.total_s == math.inf
    assert math.isnan(back.spending.phases_s["pilots"])
    assert back.environment.state == {"during": {"power_w": "-inf"}}, "a free-form entry keeps the text that stands for the number"


def full(synthetic: ModuleType) -> Run:
    """A run in which no field of its cases, kernels and results has its default."""
    run = synthetic.with_code(synthetic.make_run())
    accuracy = msgspec.structs.replace(
        run.results[0].accuracy,
        outputs=(
            OutputError(name="q", unit="channel", rms=1e-3, split_rms=2e-3, rounding=0.0),
            OutputError(name="k", unit="value", rms=math.inf, split_rms=0.0, floor=1e-7),
        ),
        tokens=64,
        reason="checked at 64 tokens",
    )
    verdict = Verdict(kind=VerdictKind.REGRESSION, reason="ünlike", change=Estimate(1.1, 1.05, 1.2, 0.9), p_value=0.0, margin=0.02)
    table = Attachment(kind="static", title="registers", columns=("a", "b"), rows=(("1", "2"), ("", "x")), notes=("n",))
    first, second, *others = run.results
    results = [
        msgspec.structs.replace(first, accuracy=accuracy, verdict=verdict, attachments=(table, table), covers="rope"),
        msgspec.structs.replace(second, accuracy=None, measurement=None, status=Status.CRASHED, reason="boom"),
        *others,
    ]
    warm_up = {
        "at_start": {"sm": 1},
        "warm_up": {run.cases[0].case.key: {"steady": True, "seconds": 0.2}, "c in process 2": {"reason": ""}},
    }
    return msgspec.structs.replace(
        run,
        results=results,
        environment=msgspec.structs.replace(run.environment, state=warm_up),
        kernels=[msgspec.structs.replace(run.kernels[0], requires=("a", "b"), install="c"), *run.kernels[1:]],
        warnings=["w"],
        resumed_from=["r0"],
    )


def test_every_nested_value_survives(tmp_path: Path, synthetic: ModuleType) -> None:
    run = full(synthetic)
    folder = write_run(tmp_path, run, [])
    assert read_run(folder) == run
    assert repr(read_run(folder)) == repr(run), "with the types of every nested value"
    assert {file.name for file in folder.iterdir()} == {RUN_FILE, SAMPLES_FILE, *TABLE_FILES}
    assert "warm_up" not in json.loads((folder / RUN_FILE).read_text())["environment"]["state"]


def test_the_record_says_how_many_results_ended_how(folder: Path, synthetic: ModuleType) -> None:
    record = json.loads((folder / RUN_FILE).read_text())
    run = synthetic.make_run()
    assert record["rows"] == {"cases": len(run.cases), "kernels": len(run.kernels), "results": len(run.results)}
    assert record["statuses"] == {"measured": len(run.results)}
    assert not {"cases", "kernels", "results"} & record.keys()


def test_a_run_without_cases_and_results_is_kept(tmp_path: Path, synthetic: ModuleType) -> None:
    run = msgspec.structs.replace(synthetic.make_run(), cases=[], results=[], kernels=[], suites=[])
    assert read_run(write_run(tmp_path, run, [])) == run


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_record_is_read_and_converted(folder: Path, tmp_path: Path, synthetic: ModuleType, version: int) -> None:
    run, samples = read_run(folder), (folder / SAMPLES_FILE).read_bytes()
    file = synthetic.as_version_2(folder)
    file.write_text(file.read_text().replace('"schema_version": 2', f'"schema_version": {version}'))
    assert read_run(folder) == msgspec.structs.replace(run, schema_version=version)
    for place in (folder, file):
        made = convert_run(place, tmp_path / f"from {place.name}")
        assert (made.name, read_run(made), (made / SAMPLES_FILE).read_bytes()) == (folder_name(run), run, samples)
    (folder / SAMPLES_FILE).unlink()
    assert not (convert_run(folder, tmp_path / "without") / SAMPLES_FILE).exists()


def test_a_column_that_a_reader_does_not_know_is_passed_over_and_one_that_lacks_has_its_default(folder: Path) -> None:
    import pyarrow.parquet

    file = folder / "results.parquet"
    table = pyarrow.parquet.read_table(file)
    known = read_run(folder)
    changed = table.append_column("later", pyarrow.array(["x"] * len(table))).drop_columns(["covers", "attachments"])
    pyarrow.parquet.write_table(changed, file)
    assert read_run(folder) == known
    pyarrow.parquet.write_table(table.drop_columns(["kernel"]), file)
    assert "`kernel`" in refused(folder)


def test_a_run_is_never_overwritten(folder: Path, synthetic: ModuleType) -> None:
    before = (folder / RUN_FILE).read_bytes()
    with pytest.raises(RunRecordError, match="never overwritten"):
        write_run(folder.parent, synthetic.make_run(command="another"), [])
    assert (folder / RUN_FILE).read_bytes() == before


def test_a_write_that_fails_midway_leaves_nothing(tmp_path: Path, synthetic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    for step in ("write_samples", "encode_table", "write_file"):
        monkeypatch.setattr(run_folder, step, full_disk)
        with pytest.raises(OSError, match="no space"):
            write_run(tmp_path / "runs", synthetic.make_run(), [])
        assert list((tmp_path / "runs").iterdir()) == []
        monkeypatch.undo()


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


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00 not text", b"[1, 2", b"{]", b"[" * 200_000, b'{"schema_version": 3, "plan": ' + b"[" * 200_000]
)
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


def test_a_record_that_does_not_fit_its_schema_names_the_field(folder: Path, synthetic: ModuleType) -> None:
    file = synthetic.as_version_2(folder)
    record = json.loads(file.read_text())
    record["results"][3]["role"] = "fastest"
    file.write_text(json.dumps(record))
    message = refused(folder)
    assert "$.results[3].role" in message
    assert "fastest" in message


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("plan", [], "`$.plan`"),
        ("environment", None, "`$.environment`"),
        ("rows", None, "lacks `rows`"),
        ("rows", {"cases": 5}, "lacks `rows`"),
        ("rows", {"cases": 5, "kernels": 6, "results": 29}, "results.parquet: holds 30 rows, but run.json says 29"),
        ("rows", {"cases": 5, "kernels": "six", "results": 30}, "kernels.parquet: holds 6 rows, but run.json says 'six'"),
        ("rows", {"cases": 5, "kernels": 6, "results": 30, "warm_up": 1}, "warm_up.parquet: missing"),
        ("id", "another", "cases.parquet: belongs to run 'r1', but run.json is of run 'another'"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(folder: Path, field: str, value: object, said: str) -> None:
    file = folder / RUN_FILE
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, field: value}))
    assert said in refused(folder)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_missing_truncated_or_of_another_run_is_named_with_what_to_do(
    folder: Path, tmp_path: Path, synthetic: ModuleType, name: str
) -> None:
    file = folder / name
    content = file.read_bytes()
    for planted in (b"", b"PAR1", content[:40], content[:-20], content[:200] + b"\x00" * 60 + content[260:], b"[1, 2]"):
        file.write_bytes(planted)
        message = refused(folder)
        assert f"{file}: truncated or garbled ({len(planted)} bytes)" in message
        assert "restore the file" in message
    other = write_run(tmp_path / "other", synthetic.make_run(run_id="r2"), [])
    file.write_bytes((other / name).read_bytes())
    assert f"{file}: belongs to run 'r2', but run.json is of run 'r1'" in refused(folder)
    file.unlink()
    assert f"{file}: missing; the run folder is incomplete" in refused(folder)
    file.mkdir()
    assert f"{file}: cannot be read" in refused(folder)


@pytest.mark.parametrize(
    ("name", "column", "values", "said"),
    [
        ("results", "role", "fastest", "Invalid enum value 'fastest' - at `$.results[0].role`"),
        ("results", "role", None, "`$.results[0].role`"),
        ("results", "measurement", "fast", "`$.results[0].measurement`"),
        ("results", "accuracy", 3, "`$.results[0].accuracy`"),
        ("results", "attachments", "none", "`$.results[0].attachments`"),
        ("cases", "flops", "many", "`$.cases[0].flops`"),
        ("cases", "case", "flux", "truncated or garbled"),
        ("kernels", "requires", 7, "`$.kernels[0].requires`"),
    ],
)
def test_a_column_of_another_type_is_named(folder: Path, name: str, column: str, values: object, said: str) -> None:
    import pyarrow.parquet

    file = folder / f"{name}.parquet"
    table = pyarrow.parquet.read_table(file)
    place = table.column_names.index(column)
    pyarrow.parquet.write_table(table.set_column(place, column, pyarrow.array([values] * len(table))), file)
    assert said in refused(folder)


def test_json_text_in_a_column_that_is_garbled_is_named(folder: Path) -> None:
    import pyarrow.parquet

    file = folder / "cases.parquet"
    table = pyarrow.parquet.read_table(file)
    cases = table["case"].to_pylist()
    planted = pyarrow.array([{**one, "params": "{"} for one in cases], type=table.schema.field("case").type)
    pyarrow.parquet.write_table(table.set_column(0, "case", planted), file)
    assert "cases.parquet: truncated or garbled" in refused(folder)


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


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux lists them")
def test_reading_a_record_starts_no_threads(tmp_path: Path, synthetic: ModuleType) -> None:
    """A command that ended while the pool of pyarrow was starting was ended by signal 6: `terminate called without an active exception`."""
    run = synthetic.make_run()
    folder = write_run(tmp_path, run, synthetic.make_samples(run))
    program = (
        "import os, sys, pathlib, pyarrow.parquet\n"
        "from fusebench.store.run_folder import read_run, read_samples\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "import numpy, pandas\n"
        "before = threads(); read_run(pathlib.Path(sys.argv[1])); read_samples(pathlib.Path(sys.argv[1])); print(threads() - before)\n"
        "pyarrow.parquet.read_table(pathlib.Path(sys.argv[1]) / 'results.parquet'); print(threads() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    own, planted = map(int, done.stdout.split())
    assert own == 0
    assert planted > 0, "what the count is to see"
