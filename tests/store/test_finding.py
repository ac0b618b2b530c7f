from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from fusebench.config import Project
from fusebench.errors import RunRecordError, UnknownNameError
from fusebench.store.finding import OTHER_RECORDS, find_run, runs_folder
from fusebench.store.run_folder import write_run


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(root=tmp_path, kernels=(), suites=(), results=tmp_path / "results")


@pytest.fixture
def runs(project: Project, synthetic: ModuleType) -> dict[str, Path]:
    days = {"ab12": "2026-07-27T07:00:00Z", "ab34": "2026-07-28T07:00:00Z", "cd56": "2026-07-26T07:00:00Z"}
    return {
        name: write_run(runs_folder(project), synthetic.make_run(run_id=name, created=day, cases=("flux_1024",)), [])
        for name, day in days.items()
    }


def test_a_run_answers_to_its_path_id_prefix_and_folder_name(project: Project, runs: dict[str, Path]) -> None:
    folder = runs["cd56"]
    for text in (str(folder), str(folder / "run.json"), "cd56", "c", folder.name, folder.name[:12]):
        assert find_run(text, project) == folder, text


def test_a_folder_of_other_records_says_so(project: Project) -> None:
    """Planted defect: after `ab`, `report latest` said that the folder with its record holds no runs yet."""
    kept = runs_folder(project) / "20260101T000000Z_abcdef01_ab"
    kept.mkdir(parents=True)
    (kept / "report.md").touch()
    with pytest.raises(RunRecordError, match=f"holds none of `fusebench run`, only of other commands; name one, such as {kept.name}"):
        find_run("latest", project)


@pytest.mark.parametrize(("name", "command"), OTHER_RECORDS.items())
@pytest.mark.usefixtures("runs")
def test_another_commands_record_is_refused_by_that_commands_name(project: Project, name: str, command: str) -> None:
    """Planted defect: `compare` of an `ab` folder said that it holds no run.json."""
    kept = runs_folder(project) / "20260101T000000Z_fedcba98_other"
    kept.mkdir(parents=True)
    (kept / name).touch()
    for text in (str(kept), kept.name, "fedcba98", "fed"):
        with pytest.raises(RunRecordError, match=f"found {name}, a record of `{command}`; expected one of `fusebench run`"):
            find_run(text, project)
    assert find_run(str(kept), project, records=(name,)) == kept


def test_latest_is_the_last_created(project: Project, runs: dict[str, Path]) -> None:
    assert find_run("latest", project) == runs["ab34"]


def test_what_fits_several_runs_is_refused_by_name(project: Project, runs: dict[str, Path]) -> None:
    with pytest.raises(RunRecordError, match="ambiguous") as caught:
        find_run("ab", project)
    assert runs["ab12"].name in str(caught.value)


@pytest.mark.usefixtures("runs")
def test_an_unknown_run_suggests_the_nearest(project: Project) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cd56'"):
        find_run("cd57", project)


def test_without_runs_the_way_to_make_one_is_named(project: Project) -> None:
    with pytest.raises(RunRecordError, match="fusebench run"):
        find_run("latest", project)


def test_a_path_that_does_not_exist_is_left_to_the_reader(project: Project) -> None:
    assert find_run("some/where", project) == Path("some/where")


def test_a_half_written_folder_is_no_run(project: Project, runs: dict[str, Path]) -> None:
    (runs_folder(project) / "20990101T000000Z_zz99").mkdir()
    assert find_run("latest", project) == runs["ab34"]
