"""A suite's file: strict reading, every defect one error at its exact position."""

from __future__ import annotations

import textwrap

import pytest

from fusebench.config import Project
from fusebench.errors import SuiteError, UnknownNameError
from fusebench.schema import Case, ExitCode
from fusebench.suites import load_suite
from fusebench.toml_errors import TomlFile
from helpers import toy_suites
from helpers.toy_suites import GOOD, OPS, write

project = toy_suites.project


def one_case(case: str, head: str = '[suite]\nname = "good"\n') -> str:
    return f"{head}\n[[case]]\n{textwrap.dedent(case)}"


def test_a_suite_becomes_cases_with_their_raw_params(project: Project) -> None:
    write(project, GOOD)
    suite = load_suite("good", project, OPS)
    assert (suite.name, suite.description, suite.path) == ("good", "two cases", "suites/good.toml")
    assert suite.cases[0] == Case(suite="good", name="first", op="toy", params={"tokens": 4, "rope_dim": 64}, weight=38.0, source="made up")
    assert suite.cases[1].weight == 1.0
    assert suite.cases[1].key == "good:second"


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
    "sizes that the op does not refuse, and that move nothing": (
        GOOD.replace("tokens = 8", "tokens = 8, head_dim = 0"),
        "suites/good.toml:17: case[second].params: found sizes that move 0 bytes, expected at least 1 byte; correct the value",
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
        "unknown suite 'good': the file suites/good.toml calls its suite 'goods'; use that name, or the file's path",
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
