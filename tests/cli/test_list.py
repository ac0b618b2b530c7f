"""`fusebench list`: complete, machine-readable on request, never cut when piped, and clear about what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


pytestmark = pytest.mark.usefixtures("toy_project")


def listed(fusebench: Run, *arguments: str) -> Any:
    result = fusebench("list", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_kernels_as_json_are_objects_with_the_documented_keys(fusebench: Run) -> None:
    fast, split = listed(fusebench, "kernels", "--device", "cpu")
    assert fast == {
        "id": "scale/fast@2",
        "op": "scale",
        "name": "fast",
        "version": 2,
        "role": "fused",
        "language": "cuda",
        "contract": "close(1.5x split)",
        "note": "four at a time",
        "file": "kernels/scale/fast.py",
        "runnable": False,
        "reason": "CUDA C++ needs a GPU",
        "not_installed": [],
        "requires": [],
        "install": "",
        "covers": "",
    }
    assert (split["id"], split["runnable"], split["reason"]) == ("scale/split@1", True, "")


def test_kernels_of_a_suite_say_which_case_they_support_and_why_not(fusebench: Run) -> None:
    fast, split = listed(fusebench, "kernels", "--suite", "scale")
    assert fast["cases"] == [
        {"case": "scale:even", "supported": True, "reason": ""},
        {"case": "scale:odd", "supported": False, "reason": "size 4097 is no multiple of 4"},
    ]
    assert all(case["supported"] for case in split["cases"])
    table = fusebench("list", "kernels", "--suite", "scale").stdout
    assert "no: size 4097 is no multiple of 4" in table


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--kernel", "fast"], ["scale/fast@2"]),
        (["--kernel", "*@1"], ["scale/split@1"]),
        (["--op", "scale"], ["scale/fast@2", "scale/split@1"]),
        (["--case", "odd", "--kernel", "split"], ["scale/split@1"]),
    ],
)
def test_kernels_are_narrowed_by_options(fusebench: Run, options: list[str], expected: list[str]) -> None:
    assert [kernel["id"] for kernel in listed(fusebench, "kernels", *options)] == expected


def test_cases_show_shape_weight_and_source(fusebench: Run) -> None:
    even, odd = listed(fusebench, "cases", "--suite", "scale")
    assert even == {
        "suite": "scale",
        "case": "even",
        "op": "scale",
        "shape": "4096",
        "weight": 19.0,
        "variant": "",
        "source": "made up, [brackets] and all",
        "params": {"size": 4096},
    }
    assert (odd["case"], odd["weight"]) == ("odd", 1.0)
    assert "made up, [brackets] and all" in fusebench("list", "cases").stdout, "brackets are text, not markup"


def test_cases_of_all_suites_are_listed_unless_one_is_named(fusebench: Run) -> None:
    assert [case["suite"] for case in listed(fusebench, "cases")] == ["models/toy"] * 2 + ["scale"] * 2
    assert [case["suite"] for case in listed(fusebench, "cases", "--suite", "models/toy", "--case", "even")] == ["models/toy"]
    both = listed(fusebench, "cases", "--suite", "scale", "--suite", "suites/models/toy.toml", "--suite", "scale")
    assert [case["suite"] for case in both] == ["scale"] * 2 + ["models/toy"] * 2


def test_suites_and_ops(fusebench: Run) -> None:
    toy, scale = listed(fusebench, "suites")
    assert (toy.pop("origin"), scale["origin"]) == ("project", "project")
    assert toy == {"suite": "models/toy", "cases": 2, "description": "sizes of models/toy", "path": "suites/models/toy.toml", "problem": ""}
    assert scale["suite"] == "scale"
    (op,) = listed(fusebench, "ops")
    assert (op["op"], op["description"], op["in_place"], op["params"]) == (
        "scale",
        "multiply a vector in place.",
        True,
        {"size": "required"},
    )


def test_without_an_argument_everything_is_listed_in_short(fusebench: Run) -> None:
    document = listed(fusebench)
    assert {key: len(value) for key, value in document.items()} == {"ops": 1, "kernels": 2, "suites": 2}
    text = fusebench("list").stdout
    assert all(word in text for word in ("ops", "scale/fast@2", "models/toy"))


def test_a_piped_table_holds_each_row_on_one_uncut_line(fusebench: Run, toy_project: Path) -> None:
    long_name, source = "c" * 150, "s" * 400
    file = toy_project / "suites" / "scale.toml"
    file.write_text(file.read_text().replace('"even"', f'"{long_name}"').replace("made up, [brackets] and all", source))
    lines = fusebench("list", "cases", "--suite", "scale").stdout.splitlines()
    assert any(long_name in line and source in line for line in lines)
    assert not any(line.endswith(" ") for line in lines)


def test_a_kernel_file_that_fails_to_load_is_one_line_on_stderr(fusebench: Run, toy_project: Path) -> None:
    (toy_project / "kernels" / "scale" / "broken.py").write_text("raise ValueError('first line\\nsecond line')\n")
    result = fusebench("list", "kernels", "--json")
    assert result.exit_code == 0
    assert result.stderr == "warning: kernels/scale/broken.py: line 1: ValueError: first line second line\n"
    assert [kernel["id"] for kernel in json.loads(result.stdout)] == ["scale/fast@2", "scale/split@1"]


@pytest.mark.parametrize("what", [["suites"], ["cases"], []])
def test_a_refused_suite_is_one_line_on_stderr_and_exit_code_2_while_the_rest_is_listed(
    fusebench: Run, toy_project: Path, what: list[str]
) -> None:
    (toy_project / "suites" / "bad.toml").write_text('[suite]\nname = "bad"\nextra = 1\n')
    result = fusebench("list", *what, "--json")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: suites/bad.toml:3: suite.extra: found an unknown key, expected one of name, description, include; remove it"
    ]
    assert "models/toy" in result.stdout
    json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["cases", "--suite", "scael"], "unknown suite 'scael'; did you mean 'scale'?"),
        (["cases", "--suite", "suites/scael.toml"], "suite file suites/scael.toml does not exist; did you mean the suite 'scale'?"),
        (["cases", "--op", "scael"], "unknown op 'scael'; did you mean 'scale'?"),
        (["cases", "--case", "evne"], "unknown case 'evne'; did you mean 'even'?"),
        (["kernels", "--kernel", "fats"], "unknown kernel 'fats'"),
        (["ops", "--op", "scael"], "unknown op 'scael'; did you mean 'scale'?"),
        (["kernels", "--device", "gpu"], "--device 'gpu': expected auto, cpu, cuda or cuda:N"),
        (["ops", "--kernels", "absent"], "kernels folder absent does not exist"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(fusebench: Run, arguments: list[str], expected: str) -> None:
    result = fusebench("list", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_kernels_from_another_folder_replace_the_projects(fusebench: Run, toy_project: Path) -> None:
    (toy_project / "kernels").rename(toy_project / "elsewhere")
    assert listed(fusebench, "ops") == []
    assert [op["op"] for op in listed(fusebench, "ops", "--kernels", "elsewhere")] == ["scale"]


def test_an_unknown_thing_to_list_is_a_usage_error(fusebench: Run) -> None:
    result = fusebench("list", "kernel")
    assert result.exit_code == 2
    assert "kernels" in result.stderr
