"""Suites: strict reading, exact positions, names resolved or refused with the nearest one."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from fusebench.config import Project
from fusebench.errors import SuiteError, UnknownNameError, UsageError
from fusebench.registry import Op
from fusebench.schema import Case, ExitCode, Suite
from fusebench.suites import list_suites, load_suite, select_cases
from fusebench.toml_errors import TomlFile


class ToyParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: int
    head_dim: int = 128
    rope_dim: int | None = None
    layout: Literal["interleaved", "neox"] = "neox"
    packed: bool = False
    axes: list[int] = []

    def __post_init__(self) -> None:
        if self.tokens <= 0:
            raise ValueError(f"tokens is {self.tokens}; it must be positive")
        if self.rope_dim is not None and self.rope_dim > self.head_dim:
            raise ValueError(f"rope_dim is {self.rope_dim}; it must be at most head_dim ({self.head_dim})")


class ToyOp(Op):
    name = "toy"
    Params = ToyParams

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("reading a suite must not compute")

    buffers = arguments = reference = params_of = minimum_bytes = flops = shape = shrink = _unused


OPS: dict[str, Op] = {"toy": ToyOp()}

GOOD = """\
# A comment before everything.

[suite]
name = "good"
description = "two cases"

[[case]]
name = "first"
op = "toy"
params = { tokens = 4, rope_dim = 64 }
weight = 38
source = "made up"

[[case]]
name = "second"
op = "toy"
params = { tokens = 8 }
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project in the current folder, with one suites folder."""
    (tmp_path / "suites").mkdir()
    monkeypatch.chdir(tmp_path)
    return Project(root=tmp_path, kernels=(), suites=(tmp_path / "suites",), results=tmp_path / "results")


def write(project: Project, text: str, name: str = "good") -> Path:
    file = project.suites[0] / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


def one_case(case: str, head: str = '[suite]\nname = "good"\n') -> str:
    return f"{head}\n[[case]]\n{textwrap.dedent(case)}"


def test_a_suite_becomes_cases_with_their_raw_params(project: Project) -> None:
    write(project, GOOD)
    suite = load_suite("good", project, OPS)
    assert (suite.name, suite.description, suite.path) == ("good", "two cases", "suites/good.toml")
    assert suite.cases[0] == Case(suite="good", name="first", op="toy", params={"tokens": 4, "rope_dim": 64}, weight=38.0, source="made up")
    assert suite.cases[1].weight == 1.0
    assert suite.cases[1].key == "good:second"


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


REFUSALS = {
    "unknown top-level key": (
        GOOD.replace("[[case]]", "[[cases]]"),
        "suites/good.toml:7: cases: found an unknown key, expected one of suite, case; did you mean 'case'?",
    ),
    "unknown key of [suite]": (
        GOOD.replace("description", "descripton"),
        "suites/good.toml:5: suite.descripton: found an unknown key, "
        "expected one of name, description, include; did you mean 'description'?",
    ),
    "unknown key of a case": (
        GOOD.replace("weight", "wieght"),
        "suites/good.toml:11: case[first].wieght: found an unknown key, "
        "expected one of name, op, params, weight, source, variant; did you mean 'weight'?",
    ),
    "unknown key of params": (
        GOOD.replace("{ tokens = 8 }", "{ tokens = 8, ropedim = 2 }"),
        "suites/good.toml:17: case[second].params.ropedim: found an unknown key, "
        "expected one of tokens, head_dim, rope_dim, layout, packed, axes; did you mean 'rope_dim'?",
    ),
    "unknown key far from any known one": (
        GOOD.replace("weight = 38", "zzz = 1"),
        "suites/good.toml:11: case[first].zzz: found an unknown key, expected one of name, op, params, weight, source, variant; remove it",
    ),
    "string for an integer": (
        GOOD.replace("tokens = 4", 'tokens = "4"'),
        "suites/good.toml:10: case[first].params.tokens: found '4' (string), expected integer; write a whole number without quotes",
    ),
    "float for an integer": (
        GOOD.replace("tokens = 4", "tokens = 4.0"),
        "suites/good.toml:10: case[first].params.tokens: found 4.0 (float), expected integer; write a whole number without quotes",
    ),
    "integer for a boolean": (
        GOOD.replace("tokens = 8", "tokens = 8, packed = 1"),
        "suites/good.toml:17: case[second].params.packed: found 1 (integer), expected boolean; write true or false without quotes",
    ),
    "string for an optional integer": (
        GOOD.replace("rope_dim = 64", 'rope_dim = "all"'),
        "suites/good.toml:10: case[first].params.rope_dim: found 'all' (string), expected integer; write a whole number without quotes",
    ),
    "wrong element of an array": (
        GOOD.replace("tokens = 8", 'tokens = 8, axes = [16, "56"]'),
        "suites/good.toml:17: case[second].params.axes[1]: found '56' (string), expected integer; write a whole number without quotes",
    ),
    "integer for a name": (
        GOOD.replace('name = "second"', "name = 2"),
        "suites/good.toml:15: case[1].name: found 2 (integer), expected string; write it in quotes",
    ),
    "string for a weight": (
        GOOD.replace("38", '"38"'),
        "suites/good.toml:11: case[first].weight: found '38' (string), expected float; write a number without quotes",
    ),
    "one bracket too few": (
        one_case("""name = "first" """).replace("[[case]]", "[case]"),
        "suites/good.toml:4: case: found {'name': 'first'} (table), expected array; "
        "write an array: [ … ], or [[header]] with two brackets for a list of tables",
    ),
    "a choice misspelt": (
        GOOD.replace("tokens = 8", 'tokens = 8, layout = "neo"'),
        "suites/good.toml:17: case[second].params.layout: found 'neo', expected one of 'interleaved', 'neox'; did you mean 'neox'?",
    ),
    "missing params": (
        GOOD.replace("params = { tokens = 8 }", ""),
        "suites/good.toml:14: case[second].params: found no key 'params', expected one; add `params = …`",
    ),
    "missing key of params": (
        GOOD.replace("{ tokens = 8 }", "{ head_dim = 64 }"),
        "suites/good.toml:17: case[second].params.tokens: found no key 'tokens', expected one; add `tokens = …`",
    ),
    "missing [suite]": (
        GOOD[GOOD.index("[[case]]") :],
        "suites/good.toml:1: suite: found no key 'suite', expected one; add `suite = …`",
    ),
    "negative size": (
        GOOD.replace("tokens = 4", "tokens = -4"),
        "suites/good.toml:10: case[first].params.tokens: tokens is -4; it must be positive; correct the value",
    ),
    "impossible combination": (
        GOOD.replace("rope_dim = 64", "rope_dim = 256"),
        "suites/good.toml:10: case[first].params.rope_dim: rope_dim is 256; it must be at most head_dim (128); correct the value",
    ),
    "duplicate case": (
        GOOD.replace("second", "first"),
        "suites/good.toml:15: case[first].name: found a second case 'first', expected unique names; rename it or the one on line 8",
    ),
    "zero weight": (
        GOOD.replace("38", "0"),
        "suites/good.toml:11: case[first].weight: found 0, expected launches per denoise step, more than 0; "
        "use 1 where no weights are published",
    ),
    "negative weight": (GOOD.replace("38", "-1.5"), "suites/good.toml:11: case[first].weight: found -1.5, expected"),
    "infinite weight": (GOOD.replace("38", "inf"), "suites/good.toml:11: case[first].weight: found inf, expected"),
    "weight that is no number": (GOOD.replace("38", "nan"), "suites/good.toml:11: case[first].weight: found nan, expected"),
    "no cases": ('[suite]\nname = "good"\n', "suites/good.toml:1: suite: found no [[case]], expected at least one; add one"),
    "name unlike the file's": (
        GOOD.replace('name = "good"', 'name = "goods"'),
        "suites/good.toml:4: suite.name: found 'goods', expected 'good', as the file is called; rename the suite or the file",
    ),
    "include that is no list": (
        GOOD.replace("\n[[case]]", 'include = "other"\n\n[[case]]', 1),
        "suites/good.toml:6: suite.include: found 'other' (string), expected array; write an array",
    ),
    "variant with a space": (
        GOOD.replace("weight = 38", 'variant = "tp 2"'),
        "suites/good.toml:11: case[first].variant: found 'tp 2', expected",
    ),
    "name with a space": (
        GOOD.replace('name = "good"', 'name = "go od"'),
        "suites/good.toml:4: suite.name: found 'go od', expected letters",
    ),
    "case name with a colon": (GOOD.replace('"first"', '"a:b"'), "suites/good.toml:8: case[a:b].name: found 'a:b', expected letters"),
    "TOML syntax": (GOOD.replace("weight = 38", "weight = = 38"), "suites/good.toml:11: not valid TOML: Invalid value; correct this line"),
    "TOML that ends too early": (
        GOOD.replace("{ tokens = 8 }\n", "[1"),
        "suites/good.toml:17: not valid TOML: Unclosed array; correct this line",
    ),
    "key given twice": (GOOD.replace('source = "made up"', "weight = 1"), "suites/good.toml:12: not valid TOML: Cannot overwrite a value"),
}


@pytest.mark.parametrize("defect", REFUSALS)
def test_each_defect_is_one_error_with_file_line_and_key_path(project: Project, defect: str) -> None:
    text, expected = REFUSALS[defect]
    write(project, text)
    with pytest.raises(SuiteError) as caught:
        load_suite("good", project, OPS)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


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


def test_an_unknown_op_is_refused_with_its_position_and_the_nearest_op(project: Project) -> None:
    write(project, GOOD.replace('"toy"', '"toi"', 1))
    with pytest.raises(UnknownNameError, match=r"^suites/good.toml:9: case\[first\]\.op: unknown op 'toi'; did you mean 'toy'\?"):
        load_suite("good", project, OPS)


def test_a_file_that_is_not_utf8_is_refused_with_the_line(project: Project) -> None:
    write(project, GOOD).write_bytes(GOOD.replace("made up", "caf\xe9").encode("latin-1"))
    with pytest.raises(SuiteError, match=r"^suites/good.toml:12: found byte 0xe9, expected UTF-8 text"):
        load_suite("good", project, OPS)


def test_an_unreadable_file_is_refused(project: Project) -> None:
    (project.suites[0] / "good.toml").mkdir()
    with pytest.raises(SuiteError, match=r"^suites/good.toml: cannot be read"):
        load_suite("good", project, OPS)


def test_positions_hold_across_multi_line_values_and_carriage_returns(project: Project) -> None:
    text = one_case(
        '''\
        name = "first"
        source = """
        [[case]]
        weight = -1
        """
        # A comment right before the key.

        weight = -1
        op = "toy"
        params.tokens = 4
        params.axes = [
            16,
            "56",
        ]
        '''
    )
    for spelled in (text, text.replace("\n", "\r\n")):
        (project.suites[0] / "good.toml").write_bytes(spelled.encode())
        with pytest.raises(SuiteError, match=r"^suites/good.toml:12: case\[first\]\.weight"):
            load_suite("good", project, OPS)
        (project.suites[0] / "good.toml").write_bytes(spelled.replace("weight = -1", "weight = 1").encode())
        with pytest.raises(SuiteError, match=r"^suites/good.toml:15: case\[first\]\.params\.axes\[1\]"):
            load_suite("good", project, OPS)


def test_every_key_of_a_file_is_found_on_the_line_that_holds_it(project: Project) -> None:
    """Against positions taken from the text itself: each key of this file stands alone at the start of a line."""
    text = GOOD + "".join(f'\n[[case]]\nname = "c{i}"\nop = "toy"\nparams = {{ tokens = 1 }}\n' for i in range(40))
    file = TomlFile.read(write(project, text), "good.toml")
    headers = [number for number, line in enumerate(text.split("\n"), 1) if line == "[[case]]"]
    assert [file.line_of(("case", index)) for index in range(42)] == headers
    assert [file.line_of(("case", index, "op")) for index in range(42)] == [header + 2 for header in headers]
    assert file.line_of(("case", 7, "absent")) == headers[7]
    assert file.line_of(("absent",)) == 1


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
