"""Suites by their names: found or refused with the nearest one, included in others, listed, and their cases selected."""

from __future__ import annotations

import msgspec
import pytest

from fusebench.config import Project
from fusebench.errors import SuiteError, UnknownNameError, UsageError
from fusebench.schema import Case, ExitCode, Suite
from fusebench.suites import list_suites, load_suite, select_cases, suite_names
from helpers import toy_suites
from helpers.toy_suites import GOOD, OPS, write

project = toy_suites.project


def test_a_name_may_contain_folders(project: Project) -> None:
    write(project, GOOD.replace('"good"', '"models/flux1_dev"'), "models/flux1_dev")
    assert load_suite("models/flux1_dev", project, OPS).name == "models/flux1_dev"


def test_a_path_outside_the_suites_folders_is_accepted(project: Project) -> None:
    (project.root / "good.toml").write_text(GOOD)
    assert load_suite("good.toml", project, OPS).path == "good.toml"
    assert load_suite(str(project.root / "good.toml"), project, OPS).path == "good.toml"


def test_a_name_wins_over_a_folder_or_file_of_the_same_spelling(project: Project) -> None:
    write(project, GOOD)
    (project.root / "good").write_text("not a suite")
    assert load_suite("good", project, OPS).path == "suites/good.toml"


def other(name: str, *include: str, case: bool = True) -> str:
    """A suite of one case that includes these."""
    head = f'[suite]\nname = "{name}"\ninclude = [{", ".join(map(repr, include))}]\n'
    return head + ('\n[[case]]\nname = "c"\nop = "toy"\nparams = { tokens = 1 }\n' if case else "")


def test_included_cases_follow_a_suites_own_and_keep_the_name_of_their_suite(project: Project) -> None:
    write(project, other("night", "models/a", "b"), "night")
    write(project, other("models/a", "deep"), "models/a")
    for name in ("b", "deep"):
        write(project, other(name), name)
    suite = load_suite("night", project, OPS)
    assert [case.key for case in suite.cases] == ["night:c", "models/a:c", "deep:c", "b:c"]
    assert suite.included == {"models/a": "suites/models/a.toml", "deep": "suites/deep.toml", "b": "suites/b.toml"}
    assert {listing.name: listing.cases for listing in list_suites(project, OPS)} == {"b": 1, "deep": 1, "models/a": 2, "night": 4}


def test_a_suite_may_hold_nothing_but_other_suites(project: Project) -> None:
    write(project, GOOD)
    write(project, other("night", "good", case=False), "night")
    assert load_suite("night", project, OPS).cases == load_suite("good", project, OPS).cases


def test_a_suite_outside_the_folders_includes_by_name(project: Project) -> None:
    write(project, GOOD)
    (project.root / "mine.toml").write_text(other("mine", "good"))
    assert [case.key for case in load_suite("mine.toml", project, OPS).cases] == ["mine:c", "good:first", "good:second"]


BAD_INCLUDES = {
    "unknown": ({"a": ["goood"]}, r"suites/a.toml:3: suite\.include\[0\]: unknown suite 'goood'; did you mean 'good'\?"),
    "a path": ({"a": ["good.toml"]}, r"suites/a.toml:3: suite\.include\[0\]: unknown suite 'good.toml'; did you mean 'good'\?"),
    "itself": (
        {"a": ["good", "a"]},
        r"suites/a.toml:3: suite\.include\[1\]: found 'a', which includes itself, expected no cycle; remove it",
    ),
    "a cycle": (
        {"a": ["b"], "b": ["c"], "c": ["good", "a"]},
        r"suites/c.toml:3: suite\.include\[1\]: found 'a', which includes itself by way of suites/b.toml and suites/c.toml",
    ),
    "twice": ({"a": ["good", "good"]}, r"suites/a.toml:3: suite\.include\[1\]: found 'good' a second time, expected each suite once"),
    "twice, once through another": (
        {"a": ["b", "good"], "b": ["good"]},
        r"suites/a.toml:3: suite\.include\[1\]: found 'good'; 'b' brings it already, expected each suite once",
    ),
    "twice through others": (
        {"a": ["b", "c"], "b": ["good"], "c": ["good"]},
        r"suites/a.toml:3: suite\.include\[1\]: found 'c', which brings 'good'; 'b' brings it already, expected each suite once",
    ),
}


@pytest.mark.parametrize("defect", BAD_INCLUDES)
def test_a_bad_include_is_refused_where_it_stands(project: Project, defect: str) -> None:
    write(project, GOOD)
    files, expected = BAD_INCLUDES[defect]
    for name, include in files.items():
        write(project, other(name, *include), name)
    with pytest.raises(UsageError, match=f"^{expected}") as caught:
        load_suite("a", project, OPS)
    assert caught.value.exit_code is ExitCode.USAGE
    problems = {listing.name: listing.problem for listing in list_suites(project, OPS)}
    assert problems["good"] == ""
    assert problems["a"]


def test_an_included_suite_in_two_folders_is_refused(project: Project) -> None:
    write(project, GOOD)
    write(project, other("a", "good"), "a")
    more = project.root / "more"
    more.mkdir()
    (more / "good.toml").write_text(GOOD)
    both = msgspec.structs.replace(project, suites=(*project.suites, more))
    with pytest.raises(SuiteError, match=r"^suites/a.toml:3: suite.include\[0\]: suite 'good' is in several suites folders"):
        load_suite("a", both, OPS)


def test_an_included_suites_own_errors_keep_their_position(project: Project) -> None:
    write(project, GOOD.replace("tokens = 4", "tokens = 0"))
    write(project, other("a", "good"), "a")
    with pytest.raises(SuiteError, match=r"^suites/good.toml:10: case\[first\]\.params\.tokens"):
        load_suite("a", project, OPS)


def test_a_case_that_two_selected_suites_bring_is_selected_once(project: Project) -> None:
    write(project, GOOD)
    write(project, other("a", "good"), "a")
    suites = [load_suite(name, project, OPS) for name in ("good", "a")]
    assert [case.key for case in select_cases(suites)] == ["good:first", "good:second", "a:c"]


def test_an_unknown_suite_name_offers_the_nearest(project: Project) -> None:
    write(project, GOOD)
    with pytest.raises(UnknownNameError, match=r"unknown suite 'goood'; did you mean 'good'\?"):
        load_suite("goood", project, OPS)


def test_a_missing_file_offers_the_nearest_suite(project: Project) -> None:
    write(project, GOOD)
    with pytest.raises(SuiteError, match=r"suite file suites/goood.toml does not exist; did you mean the suite 'good'\?"):
        load_suite("suites/goood.toml", project, OPS)


def test_a_name_cannot_leave_the_suites_folder(project: Project) -> None:
    (project.root / "outside.toml").write_text(GOOD)
    with pytest.raises(UnknownNameError):
        load_suite("../outside", project, OPS)


def test_a_name_in_two_suites_folders_is_refused(project: Project) -> None:
    write(project, GOOD)
    other = project.root / "more"
    other.mkdir()
    (other / "good.toml").write_text(GOOD)
    both = msgspec.structs.replace(project, suites=(*project.suites, other))
    with pytest.raises(SuiteError, match="'good' is in several suites folders"):
        load_suite("good", both, OPS)
    assert all("several suites folders" in listing.problem for listing in list_suites(both, OPS))


def test_listing_goes_on_past_a_broken_file(project: Project) -> None:
    write(project, GOOD)
    write(project, "[suite", "broken")
    write(project, GOOD.replace('"good"', '"empty_handed"').replace("tokens = 8", "tokens = 0"), "empty_handed")
    broken, empty_handed, good = list_suites(project, OPS)
    assert (good.name, good.cases, good.description, good.path, good.problem) == ("good", 2, "two cases", "suites/good.toml", "")
    assert broken.problem.startswith("suites/broken.toml:1: not valid TOML")
    assert "tokens is 0" in empty_handed.problem


def test_listing_without_ops_checks_everything_but_params(project: Project) -> None:
    write(project, GOOD.replace("tokens = 8", "tokens = 0"))
    assert [listing.problem for listing in list_suites(project)] == [""]


def suite_of(name: str, *cases: tuple[str, str]) -> Suite:
    made = tuple(Case(suite=name, name=case, op=op, params={}) for case, op in cases)
    return Suite(name=name, description="", path="", cases=made)


def test_cases_are_selected_by_op_and_glob_in_file_order() -> None:
    suites = [suite_of("a", ("x_1", "toy"), ("y_1", "other")), suite_of("b", ("x_1", "toy"), ("x_2", "toy"))]

    def keys(op: str | None = None, glob: str | None = None) -> list[str]:
        return [case.key for case in select_cases(suites, op, glob)]

    assert keys() == ["a:x_1", "a:y_1", "b:x_1", "b:x_2"]
    assert keys(op="toy") == ["a:x_1", "b:x_1", "b:x_2"]
    assert keys(glob="*_1") == ["a:x_1", "a:y_1", "b:x_1"]
    assert keys(glob="b:*") == ["b:x_1", "b:x_2"]
    assert keys("toy", "a:*") == ["a:x_1"]
    assert keys(glob="*:y*") == ["a:y_1"]


def test_a_selection_of_nothing_is_refused_with_the_nearest_name() -> None:
    suites = [suite_of("a", ("flux_1024", "toy"))]
    with pytest.raises(UnknownNameError, match=r"suite a: unknown op 'toi'; did you mean 'toy'\?"):
        select_cases(suites, "toi", None)
    with pytest.raises(UnknownNameError, match=r"suite a: unknown case 'flux_1042'; did you mean 'flux_1024'\?"):
        select_cases(suites, None, "flux_1042")
    many = [suite_of(name, ("flux_1024", "toy")) for name in "abcd"]
    with pytest.raises(UnknownNameError, match=r"^4 suites: unknown case 'zz\*'; known: flux_1024\."):
        select_cases(many, None, "zz*")


SWEEP = '[suite]\nname = "sweep"\n\n[[case]]\nname = "c"\nop = "toy"\nparams = { tokens = [1, 2, 4] }\n'


def test_a_list_of_values_is_a_case_for_each(project: Project) -> None:
    write(project, SWEEP, "sweep")
    cases = load_suite("sweep", project, OPS).cases
    assert [(case.name, case.params["tokens"]) for case in cases] == [("c_1", 1), ("c_2", 2), ("c_4", 4)]
    assert {listing.name: listing.cases for listing in list_suites(project)}["sweep"] == 3


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "[1, 2, 4]",
            "[]",
            r"suites/sweep.toml:7: case\[c\]\.params\.tokens: found \[\], expected one value, or a list",
        ),
        ("[1, 2, 4]", "[1, 1]", r"case\[c\]\.params\.tokens: found \[1, 1\], expected one value, or a list of numbers or words"),
        ("[1, 2, 4]", "[1, [2]]", r"params\.tokens: found \[1, \[2\]\], expected one value"),
        ("[1, 2, 4]", "[1, 0]", r"suites/sweep.toml:7: case\[c\]\.params\.tokens: "),
        ("[1, 2, 4] }", "[1, 2], layout = [1, 2] }", r"params\.layout: found a second list beside 'tokens'"),
        ("params", "weight = 2\nparams", r"suites/sweep.toml:7: case\[c\]\.weight: found a weight beside the sweep over 'tokens'"),
    ],
)
def test_a_sweep_that_cannot_work_is_refused_where_it_stands(project: Project, old: str, new: str, expected: str) -> None:
    write(project, SWEEP.replace(old, new, 1), "sweep")
    with pytest.raises(SuiteError, match=expected):
        load_suite("sweep", project, OPS)


def test_a_sweeps_case_may_not_take_anothers_name(project: Project) -> None:
    second = '\n[[case]]\nname = "c_2"\nop = "toy"\nparams = { tokens = 8 }\n'
    write(project, SWEEP + second, "sweep")
    with pytest.raises(SuiteError, match="found a second case 'c_2', expected unique names; rename it or the one on line 5"):
        load_suite("sweep", project, OPS)


def test_a_suite_may_be_called_differently_from_its_file(project: Project) -> None:
    write(project, GOOD, "sizes/of_2026")
    write(project, other("night", "good"), "all")
    assert suite_names(project) == ["good", "night"]
    assert load_suite("good", project, OPS).path == "suites/sizes/of_2026.toml"
    assert load_suite("night", project, OPS).included == {"good": "suites/sizes/of_2026.toml"}
    assert [listing.name for listing in list_suites(project, OPS)] == ["good", "night"]
    with pytest.raises(SuiteError, match=r"unknown suite 'sizes/of_2026': the file suites/sizes/of_2026.toml calls its suite 'good'"):
        load_suite("sizes/of_2026", project, OPS)


def test_two_files_of_one_name_are_refused_with_both_named(project: Project) -> None:
    write(project, GOOD)
    write(project, GOOD, "again")
    with pytest.raises(SuiteError, match=r"suite 'good' is the name in several files: \S+/again.toml, \S+/good.toml; rename all but one"):
        load_suite("good", project, OPS)
    assert ["several files" in listing.problem for listing in list_suites(project, OPS)] == [True, True]


def test_a_name_is_found_wherever_the_suite_table_stands(project: Project) -> None:
    head, cases = GOOD.split("\n[[case]]", 1)
    write(project, f"[[case]]{cases}\n{head}", "last")
    write(project, GOOD.replace('"good"', '"no good!"'), "unnamed")
    write(project, "[suite", "broken")
    assert suite_names(project) == ["broken", "good", "unnamed"]
    assert load_suite("good", project, OPS).path == "suites/last.toml"
