"""SELECTION options: what each combination means, and what is said when nothing is selected."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.cli.shared.selection import resolve_selection
from fusebench.errors import SuiteError, UnknownNameError, UsageError

pytestmark = pytest.mark.usefixtures("toy_project")


def test_an_op_without_a_suite_means_the_suite_of_its_name() -> None:
    selection = resolve_selection(op="scale", load_kernels=False)
    assert [suite.name for suite in selection.suites] == ["scale"]
    assert [case.key for case in selection.cases] == ["scale:even", "scale:odd"]


def test_an_op_with_a_suite_narrows_it() -> None:
    selection = resolve_selection(suite=["models/toy"], op="scale", case="odd", load_kernels=False)
    assert [case.key for case in selection.cases] == ["models/toy:odd"]


def test_nothing_selected_says_which_suites_there_are() -> None:
    with pytest.raises(UsageError, match=r"no suite selected: pass --suite NAME \(there are models/toy, scale\) or --op NAME"):
        resolve_selection(load_kernels=False)


def test_an_op_without_a_suite_of_its_name_says_which_suites_there_are(toy_project: Path) -> None:
    (toy_project / "suites" / "scale.toml").unlink()
    with pytest.raises(UnknownNameError, match=r"--op scale without --suite means the suite of the same name.*models/toy"):
        resolve_selection(op="scale", load_kernels=False)


def test_a_broken_suite_that_is_not_selected_does_not_matter_and_one_that_is_does(toy_project: Path) -> None:
    (toy_project / "suites" / "bad.toml").write_text("[suite")
    assert resolve_selection(suite=["scale"], load_kernels=False).refused == ()
    with pytest.raises(SuiteError, match=r"bad\.toml:1"):
        resolve_selection(suite=["bad"], load_kernels=False)
    everything = resolve_selection(all_suites=True, load_kernels=False)
    assert [suite.name for suite in everything.suites] == ["models/toy", "scale"]
    assert len(everything.refused) == 1


def test_two_files_of_one_suite_name_cannot_be_selected_together(toy_project: Path) -> None:
    (toy_project / "scale.toml").write_text((toy_project / "suites" / "scale.toml").read_text())
    with pytest.raises(UsageError, match="both called 'scale'"):
        resolve_selection(suite=["scale", "scale.toml"], load_kernels=False)


def test_a_file_called_like_an_included_suite_cannot_be_selected_beside_it(toy_project: Path) -> None:
    (toy_project / "scale.toml").write_text((toy_project / "suites" / "scale.toml").read_text())
    (toy_project / "suites" / "night.toml").write_text('[suite]\nname = "night"\ninclude = ["scale"]\n')
    with pytest.raises(UsageError, match="both called 'scale'"):
        resolve_selection(suite=["night", "scale.toml"], load_kernels=False)
    chosen = resolve_selection(suite=["scale", "night"], load_kernels=False)
    assert [case.key for case in chosen.cases] == ["scale:even", "scale:odd"]


def test_a_kernel_pattern_must_match_something() -> None:
    assert resolve_selection(suite=["scale"], kernel="fa*").kernel == "fa*"
    with pytest.raises(UnknownNameError, match="unknown kernel 'fa'"):
        resolve_selection(suite=["scale"], kernel="fa")


def break_kernel(project: Path, op: str = "scale") -> None:
    (project / "kernels" / op / "broken.py").write_text("raise RuntimeError('executed')")


def test_narrowly_selected_only_the_kernels_of_the_cases_ops_are_loaded(toy_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = toy_project / "kernels" / "other"
    other.mkdir()
    (other / "op.py").write_text((toy_project / "kernels" / "scale" / "op.py").read_text().replace('"scale"', '"other"'))
    break_kernel(toy_project, "other")
    selection = resolve_selection(suite=["scale"], narrow=True)
    assert set(selection.collection.kernels) == {"scale/split@1", "scale/fast@2"}
    assert capsys.readouterr().err == ""
    resolve_selection(suite=["scale"])
    assert "executed" in capsys.readouterr().err


def test_narrowly_selected_a_kernel_that_is_named_in_full_is_loaded_without_the_others(toy_project: Path) -> None:
    break_kernel(toy_project)
    selection = resolve_selection(suite=["scale"], kernel="scale/fast@2", narrow=True)
    assert list(selection.collection.kernels) == ["scale/fast@2"]
    assert str(selection.exact_kernel) == "scale/fast@2"
    assert resolve_selection(suite=["scale"], kernel="fast@2", narrow=True).exact_kernel is None


@pytest.mark.parametrize("kernel", ["scale/fats@2", "other/fast@2", "fats", "scale/*@9"])
def test_narrowly_selected_an_unknown_kernel_is_told_as_ever(kernel: str) -> None:
    said = []
    for narrow in (True, False):
        with pytest.raises(UnknownNameError) as raised:
            resolve_selection(suite=["scale"], kernel=kernel, narrow=narrow)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_narrowly_selected_each_broken_file_is_named_once(toy_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken_op = toy_project / "kernels" / "other"
    broken_op.mkdir()
    (broken_op / "op.py").write_text("raise RuntimeError('first')")
    break_kernel(toy_project)
    resolve_selection(suite=["scale"], narrow=True)
    said = capsys.readouterr().err
    assert (said.count("first"), said.count("executed"), said.count("warning")) == (1, 1, 2)
