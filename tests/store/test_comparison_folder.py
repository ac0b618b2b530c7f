"""A comparison on disk: read back as it was written, refused where it cannot be."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import msgspec
import pytest

from fusebench.errors import RecordNotWrittenError, RunRecordError
from fusebench.schema import AAPair, CacheState, Case, Environment, Estimate, Role, SamplingPlan, Verdict, VerdictKind
from fusebench.stats.sequential import Plan
from fusebench.store import comparison_folder
from fusebench.store.comparison_folder import keep_comparison, read_comparison, write_comparison, write_report
from fusebench.store.comparison_record import BaseRevision, ComparedCase, ComparedKernel, Comparison, RevisionPresence
from fusebench.store.finding import COMPARISON_FILE

CASE = Case(suite="s", name="c", op="scale", params={"size": 8})


def record() -> Comparison:
    """With an interval that has no upper end, which JSON cannot write as a number."""
    open_ended = Estimate(1.01, 0.0, math.inf)
    return Comparison(
        id="abcd1234", created="2026-07-27T07:25:47+00:00", command="fusebench ab", timer="host",
        plan=SamplingPlan(replicates=4, rounds=5, cache=CacheState.WARM, trim=0.1), looks=Plan(),
        environment=Environment(device="cpu", device_name="Toy", python="3.12", platform="x", fusebench="0"),
        base=BaseRevision(asked="main"),
        cases=[ComparedCase(case=CASE, shape="8", control_ratio=open_ended)],
        kernels=[
            ComparedKernel(
                case="c", suite="s", op="scale", kernel="scale/a@1", role=Role.FUSED, presence=RevisionPresence.BOTH,
                verdict=Verdict(kind=VerdictKind.PASS, reason="identical source files", change=open_ended),
            )
        ],
        aa_pairs=[AAPair(case="s:c", kernel="scale/a@1", time_us=3.0, change=open_ended, kind=VerdictKind.UNDECIDED)],
    )  # fmt: skip


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "runs", record(), [])
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

    monkeypatch.setattr(comparison_folder, "write_file", full)
    with pytest.raises(RecordNotWrittenError, match=r"No space left on device; what was written there before stays"):
        keep_comparison(tmp_path, record(), [])
    assert read_comparison(folder) == record()


def test_a_comparison_is_never_overwritten(tmp_path: Path) -> None:
    write_comparison(tmp_path, record(), [])
    with pytest.raises(RunRecordError, match="exists already"):
        write_comparison(tmp_path, record(), [])


def test_a_newer_a_garbled_and_a_missing_record_are_refused(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, record(), [])
    file = folder / COMPARISON_FILE
    newer = json.loads(file.read_text()) | {"comparison_version": 99}
    file.write_text(json.dumps(newer))
    with pytest.raises(RunRecordError, match="version 99 is newer than this fusebench reads"):
        read_comparison(folder)
    file.write_text(file.read_text()[:-20])
    with pytest.raises(RunRecordError, match="not a comparison that fusebench wrote"):
        read_comparison(folder)
    file.unlink()
    with pytest.raises(RunRecordError, match="cannot be read"):
        read_comparison(folder)
