"""Many runs in one small file: what a gate and a history need of them is kept, all else reads as documented."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.schema import OutputError, Run, Sample
from fusebench.store.history_file import NOT_KEPT, KeptRun, keep_run, read_history_file, write_history
from fusebench.store.run_folder import write_run
from fusebench.store.tables import COMPRESSION
from fusebench.verdict.baseline.compare_to_baseline import judge_run
from fusebench.verdict.margins.rule import MarginRule
from fusebench.verdict.record_validation import faults

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def runs(synthetic: ModuleType) -> list[Run]:
    """Four nights; in the last one a kernel has other code, is slower and less accurate."""
    slow = {("flux_1024", synthetic.FUSED): 1.2}
    history = synthetic.make_history(3)
    worse = synthetic.make_run(run_id="worse", created="2026-08-01T00:00:00Z", slow=slow, errors={("zimage_1024", synthetic.FUSED): 2.0})
    return [*map(synthetic.with_code, history), synthetic.with_code(worse, changed=(synthetic.FUSED,))]


def test_times_accuracy_code_and_yardsticks_are_kept(tmp_path: Path, runs: list[Run], synthetic: ModuleType) -> None:
    outputs = (OutputError(name="q", unit="channel", rms=1e-3, split_rms=0.25, rounding=1e-4),)
    accuracy = msgspec.structs.replace(runs[0].results[0].accuracy, outputs=outputs)
    runs[0] = synthetic.change_results(runs[0], accuracy=accuracy)
    assert write_history(tmp_path / "h.parquet", map(keep_run, runs)) == len(runs)
    for run, back in zip(runs, read_history_file(tmp_path / "h.parquet"), strict=True):
        assert (back.id, back.created, back.timer, back.plan, back.suites) == (run.id, run.created, run.timer, run.plan, run.suites)
        assert msgspec.structs.replace(run.environment, state={}) == back.environment
        assert [(one.case, one.copy_us, one.stream_us) for one in back.cases] == [
            (msgspec.structs.replace(one.case, source=""), one.copy_us, one.stream_us) for one in run.cases
        ]
        for was, now in zip(run.results, back.results, strict=True):
            assert (now.case_key, now.kernel, now.role, now.status, now.code) == (was.case_key, was.kernel, was.role, was.status, was.code)
            assert was.measurement is not None
            assert now.measurement is not None
            assert (now.measurement.time_us, now.measurement.sol) == (was.measurement.time_us, pytest.approx(was.measurement.sol))
            assert (now.measurement.replicates, now.measurement.processes) == (was.measurement.replicates, was.measurement.processes)
            assert now.accuracy is not None
            assert was.accuracy is not None
            assert now.accuracy.outputs == was.accuracy.outputs
            assert now.accuracy.rms_error == pytest.approx(was.accuracy.rms_error, rel=1e-7)
        assert faults(back) == []


def test_every_field_that_is_not_kept_exists_and_reads_as_its_value(tmp_path: Path, runs: list[Run]) -> None:
    write_history(tmp_path / "h.parquet", map(keep_run, runs))
    (first, *_) = msgspec.to_builtins(read_history_file(tmp_path / "h.parquet"))
    first["spending"] = first["spending"] or {"phases_s": {}, "kernels_s": {}}
    for path, value in NOT_KEPT.items():
        found = first
        for name in path.split("."):
            found = (found[0] if isinstance(found, list) else found)[name]
        if path != "results.measurement.sol":
            assert found == (tuple(value) if isinstance(value, list) and isinstance(found, tuple) else value), path


def test_a_gate_says_of_kept_runs_what_it_says_of_the_records(tmp_path: Path, runs: list[Run]) -> None:
    write_history(tmp_path / "h.parquet", map(keep_run, runs))
    back = read_history_file(tmp_path / "h.parquet")
    for new, old in ((1, 0), (2, 0), (3, 0), (0, 3)):
        said = [judge_run(some[new], some[old], MarginRule()) for some in (runs, back)]
        assert [(one.kernel, one.verdict.kind) for one in said[0].judgements] == [
            (one.kernel, one.verdict.kind) for one in said[1].judgements
        ]
    assert any(one.verdict.kind == "regression" for one in judge_run(back[3], back[0], MarginRule()).judgements)


def test_times_per_replicate_come_from_the_samples(tmp_path: Path, synthetic: ModuleType) -> None:
    """Of a chain, which once waits 30 us for the host in the call that opens the replicate, and once later."""
    run = synthetic.make_run(cases=("flux_1024",))
    samples = [
        Sample(
            case="qknorm_rope:flux_1024", arm="a", replicate=replicate, round=round_, position=0, kernels=2, busy_ns=9_000,
            span_ns=10_000 + (30_000 if round_ == 0 else 25_000 if (replicate, round_) == (1, 3) else round_),
        )
        for replicate in range(2)
        for round_ in range(5)
    ]  # fmt: skip
    kept = keep_run(run, write_run(tmp_path, run, samples))
    first, second = kept.replicates
    assert (first.case, first.arm, first.process, first.replicate, first.kernels, first.calls) == ("qknorm_rope:flux_1024", "a", 0, 0, 2, 5)
    assert (first.span_ns, first.opening, first.long, first.late, first.late_opening, first.late_after_round_0) == (10_003, 1, 1, 1, 1, 0)
    assert (second.late, second.late_opening, second.late_after_round_0) == (2, 1, 1)
    write_history(tmp_path / "h.parquet", [kept])
    assert read_history_file(tmp_path / "h.parquet")[0].replicates == kept.replicates


def test_floating_point_numbers_take_less_room_than_with_a_dictionary(tmp_path: Path) -> None:
    """Of the stored runs, which are read from the repository."""
    import pyarrow.parquet

    file = REPOSITORY / "results" / "history" / "nvidia_h200.parquet"
    write_history(tmp_path / "h.parquet", read_history_file(file))
    columns = pyarrow.parquet.ParquetFile(tmp_path / "h.parquet").metadata.row_group(0)
    kinds = {(one := columns.column(i)).path_in_schema: (one.physical_type, one.encodings) for i in range(columns.num_columns)}
    numbers = {path: used for path, (kind, used) in kinds.items() if kind in ("FLOAT", "DOUBLE")}
    assert len(numbers) > 20
    assert {path for path, used in numbers.items() if "BYTE_STREAM_SPLIT" not in used} == set()
    table = pyarrow.parquet.read_table(tmp_path / "h.parquet")
    pyarrow.parquet.write_table(table, tmp_path / "plain.parquet", **COMPRESSION)
    assert (tmp_path / "h.parquet").stat().st_size < 0.85 * (tmp_path / "plain.parquet").stat().st_size


def test_a_run_is_kept_once_and_in_order_of_time(tmp_path: Path, runs: list[Run]) -> None:
    file = tmp_path / "deep" / "h.parquet"
    write_history(file, map(keep_run, runs[2:]))
    write_history(file, [*read_history_file(file), *map(keep_run, runs)])
    assert [run.id for run in read_history_file(file)] == [run.id for run in runs]


def test_a_file_that_holds_no_history_is_refused_with_what_to_do(tmp_path: Path, runs: list[Run]) -> None:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "h.parquet"

    def refused() -> str:
        with pytest.raises(RunRecordError) as caught:
            read_history_file(file)
        assert str(file) in str(caught.value)
        return str(caught.value)

    assert "cannot be read" in refused()
    write_history(file, map(keep_run, runs))
    content = file.read_bytes()
    for planted in (b"", b"{}", content[:-30], content[:100]):
        file.write_bytes(planted)
        assert "truncated or garbled" in refused()
    file.write_bytes(content)
    table = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(table.replace_schema_metadata({"fusebench.history_version": "2"}), file)
    assert "version 2 is newer" in refused()
    pyarrow.parquet.write_table(table.replace_schema_metadata({}), file)
    assert "--keep FILE" in refused()
    version = {"fusebench.history_version": "1"}
    pyarrow.parquet.write_table(table.drop_columns(["results"]).replace_schema_metadata(version), file)
    assert "results" in refused()
    pyarrow.parquet.write_table(pyarrow.table({"id": ["a"], "results": ["x"]}).replace_schema_metadata(version), file)
    refused()


def test_a_kept_run_is_a_run(runs: list[Run]) -> None:
    assert isinstance(keep_run(runs[0]), KeptRun)
    assert keep_run(keep_run(runs[0])) == keep_run(runs[0])
