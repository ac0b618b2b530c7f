"""The seal of a record: it finds each edit, and says which file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fusebench.errors import AlteredRecordError, RunRecordError
from fusebench.store.baselines import promote
from fusebench.store.run_folder import RUN_FILE, SAMPLES_FILE, convert_run, read_run, seal_of, write_record, write_run


@pytest.fixture
def folder(tmp_path: Path, synthetic: ModuleType) -> Path:
    run = synthetic.make_run()
    return write_run(tmp_path / "runs", run, synthetic.make_samples(run))


def test_a_new_record_is_sealed_and_formatting_its_json_anew_does_no_harm(folder: Path) -> None:
    assert (seal_of(folder).sealed, seal_of(folder).altered) == (True, "")
    file = folder / RUN_FILE
    file.write_text(json.dumps(json.loads(file.read_text()), indent=7, sort_keys=True))
    assert seal_of(folder).altered == ""


def edit(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        head = json.loads((folder / RUN_FILE).read_text())
        (folder / RUN_FILE).write_text(json.dumps(head | {key: value}))

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (edit("exit_code", 5), "run.json does not fit its seal"),
        (edit("seal", "0" * 64), "run.json does not fit its seal"),
        (edit("files", {"../../etc/passwd": ""}), "run.json does not fit its seal"),
        (edit("files", ["cases.parquet"]), "run.json does not fit its seal"),
        (lambda folder: (folder / "kernels.parquet").write_bytes(b"other"), "kernels.parquet does not fit its seal"),
        (lambda folder: (folder / SAMPLES_FILE).unlink(), ""),  # left out to save space
    ],
)
def test_an_edit_is_found(folder: Path, change: Callable[[Path], None], expected: str) -> None:
    change(folder)
    assert seal_of(folder).altered == expected


def test_a_table_of_another_run_with_as_many_rows_is_found(folder: Path, tmp_path: Path, synthetic: ModuleType) -> None:
    slower = synthetic.make_run(half=0.1)
    other = write_run(tmp_path / "other", slower, synthetic.make_samples(slower))
    shutil.copyfile(other / "results.parquet", folder / "results.parquet")
    read_run(folder)  # it has the id and the length that the record names
    assert seal_of(folder).altered == "results.parquet does not fit its seal"


def test_samples_that_were_added_are_found(tmp_path: Path, synthetic: ModuleType, folder: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    write_record(bare, synthetic.make_run())
    assert seal_of(bare).altered == ""
    shutil.copyfile(folder / SAMPLES_FILE, bare / SAMPLES_FILE)
    assert seal_of(bare).altered == "samples.parquet was added"
    assert seal_of(bare, samples=False).altered == ""


def test_a_record_of_an_older_fusebench_has_no_seal_and_is_read(folder: Path) -> None:
    head = json.loads((folder / RUN_FILE).read_text())
    (folder / RUN_FILE).write_text(json.dumps({key: value for key, value in head.items() if key not in ("seal", "files")}))
    assert (seal_of(folder).sealed, seal_of(folder).altered) == (False, "")
    read_run(folder)


def test_an_altered_record_is_neither_converted_nor_promoted_unless_forced(folder: Path, tmp_path: Path) -> None:
    edit("command", "another")(folder)
    with pytest.raises(AlteredRecordError, match=r"altered after it was written: run\.json does not fit its seal"):
        convert_run(folder, tmp_path / "converted")
    with pytest.raises(RunRecordError, match=r"not fit to be a baseline: it was altered after it was written: run\.json"):
        promote(folder, tmp_path)
    baseline = promote(folder, tmp_path, force=True)
    assert (seal_of(baseline).sealed, seal_of(baseline).altered) == (True, "")
