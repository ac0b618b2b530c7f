"""Whatever bytes a file holds, its reader answers soon: with a value, or with an error that names the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.ci.settings import read_settings
from fusebench.config import find_project
from fusebench.counters.raw_csv import parse_raw_page
from fusebench.counters.task import Doing, Raised, read_messages, write_message
from fusebench.errors import AlteredRecordError, FusebenchError, RunRecordError
from fusebench.evidence.evidence_cache import EvidenceCache
from fusebench.evidence.records import CapturedCase
from fusebench.fleet.bisect_request import carried_over
from fusebench.registry import load_collection
from fusebench.report.bisect import bisect_document, bisect_lines
from fusebench.runner.calibrate.pilots import Pilot
from fusebench.runner.calibrate.resuming import STATE_FILE, CalibrationState, StoredGroundTruths, read_state, write_state
from fusebench.runner.calibrate.targets import CalibrationTarget
from fusebench.runner.calibrate.visit import CalibrationOptions
from fusebench.schema import Case, Injection, InjectionPlace, Spending
from fusebench.stats.bisection import plan_of_step, size_of
from fusebench.stats.sequential import Plan
from fusebench.store.baselines import promote, promotions
from fusebench.store.bisection_record import bisection_folder, keep_bisection, read_bisection
from fusebench.store.calibrations import CalibrationRecord, read_calibration, seal_of_calibration, write_calibration
from fusebench.store.comparison_folder import keep_comparison, read_comparison, read_comparison_samples, seal_of_comparison
from fusebench.store.counter_folder import keep_counters, read_counters, seal_of_counters
from fusebench.store.history_file import keep_run, read_history_file, write_history
from fusebench.store.journal import Journal, rebuild
from fusebench.store.run_folder import read_run, read_samples, seal_of, write_run
from fusebench.store.scatter_file import load_scatter
from fusebench.store.seal import SealState
from fusebench.suites import load_suite
from fusebench.verdict.history.snapshots import read_history
from helpers.mutations import refused
from helpers.synthetic_counters import FIXTURE
from helpers.synthetic_records import bisection, comparison, counters

REPOSITORY = Path(__file__).parents[2]
TOY_PROJECT = REPOSITORY / "tests" / "toy_project"
Reader = Callable[[Path], object]


def stopped_calibration(folder: Path, record: CalibrationRecord) -> Path:
    """The state of a calibration that was stopped after one visit."""
    place = InjectionPlace(0, "calibration:rows_1001", "planted/wait@1", Injection.ROWS, 0.02)
    options = CalibrationOptions(plan=record.sampling, looks=record.looks, slowdowns=(0.02,), passes=1, identical=1)
    case = Case(suite="calibration", name="rows_1001", op="planted", params={"elements": 1001})
    state = CalibrationState(
        created="2026-07-27T07:25:47+00:00", timer="cupti", environment=record.environment, sources="0", options=options,
        targets=[CalibrationTarget(case=case, kernel="planted/wait@1", injection=Injection.ROWS, key="elements")],
        pilots={0: Pilot(time_us=12.5, launches=1, values={0.02: 1021})}, done=[(0, 0)], pending=[],
        ground_truths=[StoredGroundTruths(place=0, logs=[(place, [0.02])], times_us=[(place, [12.5])], rounds=[[[0.0, 0.01]]])],
        warnings=["one"], spending=Spending(total_s=1.0),
    )  # fmt: skip
    write_state(folder, state)
    assert read_state(folder) == state
    return folder / STATE_FILE


@pytest.fixture
def more(tmp_path: Path, synthetic: ModuleType) -> dict[str, tuple[Path, Reader]]:
    """Records of other commands than `run`, and files of caches and of other processes."""
    run = synthetic.make_run(cases=("flux_1024",))
    samples = synthetic.make_samples(run)
    compared = keep_comparison(tmp_path, comparison(), [sample for sample in samples if sample.arm == samples[0].arm])
    (tmp_path / "01.ncu-rep").write_bytes(b"NVR")
    search = bisection()
    searched = keep_bisection(tmp_path / "searches", search)
    counted = keep_counters(tmp_path, counters(), tmp_path)
    record = read_calibration(REPOSITORY / "results" / "calibration" / "nvidia_h200.json")
    assert record is not None
    record = msgspec.structs.replace(record, trials=record.trials[:30], ground_truths=record.ground_truths[:4])
    sealed = write_calibration(tmp_path / "sealed", record)
    state = stopped_calibration(tmp_path / "stopped", record)
    scatter = tmp_path / "calibration" / "nvidia_h200.scatter.json"
    scatter.parent.mkdir()
    shutil.copyfile(REPOSITORY / "results" / "calibration" / scatter.name, scatter)
    cache = EvidenceCache(tmp_path / "cache")
    cache.keep_case("0" * 64, CapturedCase(kernels=(), not_loaded=("one", "two")))
    (cached,) = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    diary = tmp_path / "diary"
    for step in range(5):
        write_message(diary, Doing(f"step {step}"))
    table = tmp_path / "table.csv"
    shutil.copyfile(FIXTURE, table)

    def fits(state: SealState) -> None:
        if state.altered:
            raise AlteredRecordError(state.altered)

    def ab(_: Path) -> None:
        read_comparison(compared)
        read_comparison_samples(compared)
        fits(seal_of_comparison(compared))

    def bisect(_: Path) -> None:
        found = read_bisection(searched)
        record, probes = carried_over(found, search)
        assert bisection_folder(tmp_path, record).resolve().parent == tmp_path.resolve(), "what is written next lies among the runs"
        for probe in probes:
            if probe.slower and probe.finding is not None and probe.confirmation is not None:
                plan_of_step(Plan(), 5, size=size_of(probe.finding, probe.confirmation))
        for one in (found, msgspec.structs.replace(record, probes=probes)):
            bisect_lines(one)
            msgspec.json.encode(bisect_document(one, searched))

    def ncu(_: Path) -> None:
        read_counters(counted)
        fits(seal_of_counters(counted))

    def messages(file: Path) -> None:
        if any(isinstance(one, Raised) for one in read_messages(file)):
            raise FusebenchError("the process wrote something else")

    def calibrated(_: Path) -> None:
        read_calibration(sealed)
        fits(seal_of_calibration(sealed))

    return {
        "ab.json": (compared / "ab.json", ab),
        "ab's samples": (compared / "samples.parquet", ab),
        "bisect.json": (searched / "bisect.json", bisect),
        "ncu.json": (counted / "ncu.json", ncu),
        "sealed calibration": (sealed, calibrated),
        "its trials": (next(sealed.parent.glob("*.parquet")), calibrated),
        "state of a calibration": (state, lambda file: read_state(file.parent)),
        "scatter": (scatter, lambda _: load_scatter(tmp_path, "NVIDIA H200")),
        "evidence cache": (cached, lambda _: cache.case("0" * 64)),
        "diary of a capture": (diary, messages),
        "table of counters": (table, lambda file: parse_raw_page(file.read_text(errors="replace"), lambda name: True)),
    }


@pytest.fixture
def files(tmp_path: Path, synthetic: ModuleType, more: dict[str, tuple[Path, Reader]]) -> dict[str, tuple[Path, Reader]]:
    """By name, a file and what reads it."""
    run = synthetic.make_run(cases=("flux_1024",))
    samples = synthetic.make_samples(run)[:60]
    folder = write_run(tmp_path / "runs", run, samples)
    baseline = promote(folder, tmp_path, reason="a test", accepted=["slower"])
    history = tmp_path / "history.parquet"
    write_history(history, [keep_run(run, folder)])
    journal = Journal(tmp_path / "journals")
    journal.begin(msgspec.structs.replace(run, cases=[], results=[]))
    journal.add(run, samples)
    journal.close()
    assert journal.folder is not None
    where = journal.folder
    calibration = tmp_path / "nvidia_h200.json"
    for one in (REPOSITORY / "results" / "calibration").glob("nvidia_h200.*"):
        shutil.copyfile(one, tmp_path / one.name)
    root = tmp_path / "project"
    shutil.copytree(TOY_PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"))
    settings = root / "pull_request.toml"
    settings.write_text('suites = ["smoke"]\ngpus = ["h200"]\n')
    project = find_project(root)
    ops = load_collection([root / "kernels"], kernels=False, entry_points=False).ops
    suite = root / "suites" / "scale.toml"

    def record(_: Path) -> None:
        seal_of(folder)
        read_history([folder])
        read_run(folder)

    def case(_: Path) -> None:
        if not rebuild(where)[0].cases:
            raise RunRecordError("the case is lost, and the record says so")

    return more | {
        "run.json": (folder / "run.json", record),
        "cases.parquet": (folder / "cases.parquet", record),
        "results.parquet": (folder / "results.parquet", record),
        "kernels.parquet": (folder / "kernels.parquet", record),
        "samples.parquet": (folder / "samples.parquet", lambda _: read_samples(folder)),
        "promotions.json": (baseline / "promotions.json", lambda _: promotions(baseline)),
        "history": (history, read_history_file),
        "journal's head": (where / "head.json", lambda _: rebuild(where)),
        "journal's case": (where / "000000.case", case),
        "calibration": (calibration, read_calibration),
        "pyproject.toml": (root / "pyproject.toml", lambda _: find_project(root)),
        "pull_request.toml": (settings, lambda file: read_settings(root, file)),
        "suite": (suite, lambda file: load_suite(str(file), project, ops)),
    }


NAMES = (
    "bisect.json",
    "ab.json", "ab's samples", "ncu.json", "sealed calibration", "its trials", "state of a calibration", "scatter", "evidence cache",
    "diary of a capture", "table of counters",
    "run.json", "cases.parquet", "results.parquet", "kernels.parquet", "samples.parquet", "promotions.json", "history", "journal's head",
    "journal's case", "calibration", "pyproject.toml", "pull_request.toml", "suite",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_a_reader_answers_whatever_its_file_holds(files: dict[str, tuple[Path, Reader]], name: str, count: int) -> None:
    file, read = files[name]
    content = file.read_bytes()
    read(file)

    def write_and_read(one: bytes) -> None:
        file.write_bytes(one)
        read(file)

    assert refused(content, write_and_read, count) > count / 10, "the mutations are seen"


@pytest.mark.parametrize("value", ["-1.0", "0.0", "1e999", "null"])
def test_a_resumed_search_takes_over_no_impossible_size(files: dict[str, tuple[Path, Reader]], value: str) -> None:
    file, read = files["bisect.json"]
    changed = file.read_bytes().replace(b"[1.2,1.21]", f"[{value},{value}]".encode()).replace(b"1.21", value.encode())
    file.write_bytes(changed.replace(b"    1.2,", f"    {value},".encode()))
    assert value.encode() in file.read_bytes()
    with pytest.raises(FusebenchError):
        read(file)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    files: dict[str, tuple[Path, Reader]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusebench.store.tables.MOST_BYTES", 100)
    for name in ("results.parquet", "samples.parquet", "history"):
        file, read = files[name]
        with pytest.raises(FusebenchError, match="no record has more than 0 MB"):
            read(file)


def test_a_case_of_a_journal_whose_figures_make_no_sum_is_lost_and_named(tmp_path: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run(cases=("flux_1024",))
    (summary,) = run.cases
    weightless = msgspec.structs.replace(summary, case=msgspec.structs.replace(summary.case, weight=0.0))
    journal = Journal(tmp_path)
    journal.begin(msgspec.structs.replace(run, cases=[], results=[]))
    journal.add(msgspec.structs.replace(run, cases=[weightless]), synthetic.make_samples(run))
    journal.close()
    assert journal.folder is not None
    found, _ = rebuild(journal.folder)
    assert found.cases == []
    assert "000000.case cannot be read: a weighted speedup needs" in found.warnings[-1]


@pytest.mark.parametrize(("name", "key"), [("run.json", b'"trim": '), ("calibration", b'"trim": '), ("journal's head", b'"trim": ')])
def test_a_number_beyond_every_float_is_refused(files: dict[str, tuple[Path, Reader]], name: str, key: bytes) -> None:
    file, read = files[name]
    content = file.read_bytes()
    assert key in content
    file.write_bytes(content.replace(key, key + b"9" * 400, 1))
    with pytest.raises(FusebenchError):
        read(file)
