"""A comparison on disk: read back as it was written, refused where it cannot be."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.errors import RecordNotWrittenError, RunRecordError
from fusebench.schema import Sample
from fusebench.store import kept_folder
from fusebench.store.comparison_folder import (
    keep_comparison,
    read_comparison,
    read_comparison_samples,
    seal_of_comparison,
    write_report,
)
from fusebench.store.files import write_file
from fusebench.store.finding import COMPARISON_FILE
from fusebench.store.seal import SealState
from helpers.synthetic_records import comparison as record

SAMPLES = [Sample(case="s:c", arm="scale/a@1", replicate=0, round=0, position=0, span_ns=5, busy_ns=5, kernels=1)]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    folder = keep_comparison(tmp_path / "runs", record(), [])
    write_report(folder, "# report\n")
    assert folder.name == "20260727T072547Z_abcd1234_ab"
    assert sorted(file.name for file in folder.iterdir()) == ["ab.json", "report.md", "samples.parquet"]
    assert read_comparison(folder) == record()


def test_a_comparison_in_progress_is_a_readable_record_after_every_case(tmp_path: Path) -> None:
    begun = msgspec.structs.replace(record(), complete=False, kernels=[])
    folder = keep_comparison(tmp_path / "runs", begun, [])
    assert read_comparison(folder) == begun
    assert keep_comparison(tmp_path / "runs", record(), []) == folder
    assert read_comparison(folder) == record()
    assert [one.name for one in (tmp_path / "runs").iterdir()] == [folder.name], "no other folder is left"


def test_a_full_disk_keeps_what_was_written_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = keep_comparison(tmp_path, record(), [])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_folder, "write_file", full)
    with pytest.raises(RecordNotWrittenError, match=r"No space left on device; what was written there before stays"):
        keep_comparison(tmp_path, record(), [])
    assert read_comparison(folder) == record()


def test_a_newer_a_garbled_and_a_missing_record_are_refused(tmp_path: Path) -> None:
    folder = keep_comparison(tmp_path, record(), [])
    file = folder / COMPARISON_FILE
    newer = json.loads(file.read_text()) | {"comparison_version": 99}
    file.write_text(json.dumps(newer))
    with pytest.raises(RunRecordError, match="version 99 is newer than this fusebench reads"):
        read_comparison(folder)
    file.write_text(file.read_text()[:-20])
    with pytest.raises(RunRecordError, match="not a record that `fusebench ab` wrote"):
        read_comparison(folder)
    file.unlink()
    with pytest.raises(RunRecordError, match="cannot be read"):
        read_comparison(folder)


@pytest.mark.parametrize("step", range(4))
def test_a_kill_at_any_step_leaves_a_record_that_fits_its_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Each write and each rename is the last one before the kill."""
    begun = msgspec.structs.replace(record(), complete=False, kernels=[])
    folder = keep_comparison(tmp_path, begun, [])
    left = [step]

    def until_killed(does: Callable[..., Any]) -> Callable[..., Any]:
        def one(*arguments: Any) -> Any:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return does(*arguments)

        return one

    with monkeypatch.context() as patch:
        patch.setattr(kept_folder, "write_file", until_killed(write_file))
        patch.setattr(kept_folder, "rename", until_killed(kept_folder.rename))
        with pytest.raises(KeyboardInterrupt) if step < 3 else contextlib.nullcontext():
            keep_comparison(tmp_path, record(), SAMPLES)
    assert seal_of_comparison(folder) == SealState(sealed=True)
    assert read_comparison(folder) == (begun if step < 2 else record())
    assert read_comparison_samples(folder) == ([] if step < 2 else SAMPLES)
    keep_comparison(tmp_path, record(), SAMPLES)
    assert sorted(file.name for file in folder.iterdir()) == ["ab.json", "samples.parquet"]
