"""The run folders of a history: found by folder and by glob, and named where they cannot be read."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from fusebench.config import Project
from fusebench.errors import UsageError
from fusebench.store.finding import OTHER_RECORDS, runs_folder
from fusebench.store.run_folder import RUN_FILE, write_run
from fusebench.verdict.history.snapshots import history_folders, keep_history, read_history


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(root=tmp_path, kernels=(), suites=(), results=tmp_path / "results")


@pytest.fixture
def runs(project: Project, synthetic: ModuleType) -> list[Path]:
    """Three nights under results/runs."""
    history = synthetic.make_history(3, cases=("flux_1024",), kernels=(synthetic.BASELINE, synthetic.FUSED))
    return [write_run(runs_folder(project), run, []) for run in history]


def test_without_a_place_the_projects_runs_are_read(project: Project, runs: list[Path]) -> None:
    assert history_folders([], project) == runs


def test_a_project_without_runs_has_an_empty_history(project: Project) -> None:
    assert history_folders([], project) == []


def test_a_place_is_a_run_a_folder_of_runs_or_a_glob_of_either(
    project: Project, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = runs_folder(project)
    assert history_folders([str(runs[1])], project) == [runs[1]]
    assert history_folders([str(parent)], project) == runs
    assert history_folders([str(parent / "*_n00[12]")], project) == runs[1:]
    assert history_folders([str(tmp_path / "*" / "runs")], project) == runs
    monkeypatch.chdir(tmp_path)
    assert history_folders(["results/runs/*n002"], project) == [runs[2].relative_to(tmp_path)]


def test_a_run_that_two_places_name_is_read_once(project: Project, runs: list[Path]) -> None:
    assert history_folders([str(runs_folder(project)), str(runs[0])], project) == runs


@pytest.mark.parametrize("record", OTHER_RECORDS)
def test_runs_in_the_making_and_records_of_other_commands_are_passed_over(project: Project, runs: list[Path], record: str) -> None:
    (runs_folder(project) / ".20260704_n003.partial").mkdir()
    other = runs_folder(project) / "20260704T000000Z_c1_other"
    other.mkdir()
    (other / record).write_text("{}")
    assert history_folders([], project) == runs


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("place", ["elsewhere", "results/runs/*_zz"])
def test_a_place_that_is_none_is_refused_with_what_is_accepted(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="expected a run folder, a folder of run folders, or a glob") as caught:
        history_folders([place], project)
    assert place in str(caught.value)


def test_records_that_cannot_be_read_are_named_and_the_others_are_read(project: Project, runs: list[Path], synthetic: ModuleType) -> None:
    (runs[0] / RUN_FILE).write_bytes((runs[0] / RUN_FILE).read_bytes()[:500])
    (runs[1] / RUN_FILE).unlink()
    unfit = write_run(runs_folder(project), synthetic.make_run(run_id="hot", exit_code=3), [])
    found, unreadable = read_history(history_folders([], project))
    assert [one.run.id for one in found] == ["n002"]
    reasons = {Path(one.folder): one.reason for one in unreadable}
    assert reasons.keys() == {runs[0], runs[1], unfit}
    for folder, said in ((runs[0], "truncated or garbled"), (runs[1], f"holds no {RUN_FILE}"), (unfit, "not fit to measure")):
        assert said in reasons[folder]


def test_a_history_file_stands_for_its_runs(project: Project, runs: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "kept" / "h.parquet"
    assert keep_history(runs[:2], file) == 2
    assert history_folders([str(file), str(runs[2])], project) == [file, runs[2]]
    assert history_folders([str(tmp_path / "kept" / "*")], project) == [file]
    assert keep_history([file, runs[2]], file) == 3
    found, unreadable = read_history([file])
    (direct, _) = read_history(runs)
    assert unreadable == []
    assert [one.run.id for one in found] == ["n000", "n001", "n002"]
    for kept, whole in zip(found, direct, strict=True):
        assert kept.readings.keys() == whole.readings.keys()
        assert {key: one.time_us for key, one in kept.readings.items()} == {key: one.time_us for key, one in whole.readings.items()}
    file.write_bytes(file.read_bytes()[:100])
    (_, (garbled,)) = read_history([file])
    assert (garbled.folder, "truncated or garbled" in garbled.reason) == (str(file), True)


def test_what_is_kept_of_a_run_is_small(runs: list[Path]) -> None:
    """A hundred records of a thousand results each must fit into memory."""
    (found,), _ = read_history(runs[:1])
    assert (found.run.cases, found.run.results, found.run.kernels) == ([], [], [])
    assert len(found.readings) == 2
