"""`fusebench check`: the accuracy gate as a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Outcome

from fusebench.runner.case_kernels import result_for
from fusebench.runner.workers import checking
from fusebench.schema import Accuracy, ExitCode, Status

Fusebench = Callable[..., Outcome]

PLAIN = """
from fusebench import kernel


@kernel("scale", "plain", version=1, role="fused", language="torch")
def plain(x, *, factor=2.0):
    x.mul_({factor})
"""

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture
def project(toy_project: Path) -> Path:
    """The toy project with `scale/plain@1`, which runs on a CPU."""
    (toy_project / "kernels" / "scale" / "plain.py").write_text(PLAIN.replace("{factor}", "factor"))
    return toy_project


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Status, str], list[dict[str, Any]]]:
    """`answers(status, reason)`: every check ends so, without a process; what it was asked comes back."""

    def plant(status: Status, reason: str = "", **changes: Any) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def check(workers: Any, case_kernels: Any, kernel: Any, **options: Any) -> Any:
            asked.append({"case": case_kernels.case.key, "kernel": str(kernel.id), "seed": options["seed"]})
            known = {
                "passed": status is Status.CHECKED, "contract": "close(1.5x split)", "rms_error": 3e-3, "max_error": 2e-2,
                "mean_error": 0.0, "split_rms_error": 2e-3, "split_max_error": 2e-2, "equal_to_split": 0.5,
                "within_loose_tolerance": True, "draws": 4, "elements": 100, "seed": 7, "reason": reason,
            }  # fmt: skip
            return result_for(case_kernels.case, case_kernels.shape, kernel, status, reason, accuracy=Accuracy(**(known | changes)))

        monkeypatch.setattr(checking, "check", check)
        return asked

    return plant


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.CHECKED, ExitCode.PASS),
        *((status, ExitCode.KERNEL_FAILED) for status in (Status.WRONG, Status.CRASHED, Status.HUNG, Status.COMPILE_ERROR)),
    ],
)
def test_the_exit_code_says_whether_a_kernel_failed(fusebench: Fusebench, answers: Any, status: Status, code: ExitCode) -> None:
    answers(status, "planted")
    outcome = fusebench("check", "--suite", "scale", "--device", "cpu")
    assert outcome.exit_code == code, outcome.output
    assert "planted" in outcome.stdout


@pytest.mark.usefixtures("project")
def test_the_table_lists_every_kernel_with_errors_beside_the_split_chains(fusebench: Fusebench, answers: Any) -> None:
    answers(Status.CHECKED)
    rows = fusebench("check", "--suite", "scale", "--device", "cpu").stdout.splitlines()
    assert rows[0].split("  ")[-1].strip() == "remark"
    plain = next(row for row in rows if "scale/plain@1" in row)
    for words in ("scale:even", "checked", "close(1.5x split)", "1.50x", "1.00x", "50.00 %"):
        assert words in plain
    assert "e-03" not in "".join(rows), "no absolute error: the draws have several magnitudes"
    assert any(row.startswith("error column: RMS error against float64 as a multiple of the split chain's") for row in rows)
    assert any("scale/fast@2" in row and "CUDA C++ needs a GPU" in row for row in rows), "one that cannot run is listed with its reason"
    assert sum("scale/" in row for row in rows) == 2 * 3


@pytest.mark.usefixtures("project")
def test_a_long_remark_stands_below_the_table_once_and_no_line_is_wider_than_a_screen(fusebench: Fusebench, answers: Any) -> None:
    """Planted defect: one long reason made every line of a piped table several hundred columns wide."""
    answers(Status.WRONG, "output x is off by one ulp; " * 20)
    rows = fusebench("check", "--suite", "scale", "--device", "cpu").stdout.splitlines()
    assert max(map(len, rows)) <= 160
    told = [row for row in rows if "wrong: output x" in row]
    assert len(told) == 1
    assert told[0].startswith("scale/plain@1 on even, ")
    assert sum("see below" in row for row in rows) == sum("  wrong  " in row for row in rows) == 4, rows


@pytest.mark.usefixtures("project")
def test_an_interpreted_check_says_on_how_many_tokens(fusebench: Fusebench, answers: Any) -> None:
    answers(Status.CHECKED, "a Triton kernel needs a GPU to be timed", interpreted=True, tokens=4)
    assert "interpreted on 4 tokens" in fusebench("check", "--suite", "scale", "--device", "cpu").stdout


@pytest.mark.usefixtures("project")
def test_case_kernel_and_seed_select_what_is_repeated(fusebench: Fusebench, answers: Any) -> None:
    asked = answers(Status.CHECKED)
    fusebench("check", "--suite", "scale", "--device", "cpu", "--case", "odd", "--kernel", "plain", "--seed", "7")
    assert {"case": "scale:odd", "kernel": "scale/plain@1", "seed": 7} in asked
    assert {entry["case"] for entry in asked} == {"scale:odd"}


def test_a_kernel_file_that_does_not_load_is_a_failed_kernel(project: Path, fusebench: Fusebench, answers: Any) -> None:
    answers(Status.CHECKED)
    (project / "kernels" / "scale" / "broken.py").write_text("import no_such_module_here\n")
    outcome = fusebench("check", "--suite", "scale", "--device", "cpu", "--json")
    assert outcome.exit_code == ExitCode.KERNEL_FAILED
    document = json.loads(outcome.stdout)
    assert document["exit_code"] == 5
    (problem,) = document["not_loaded"]
    assert "broken.py" in problem
    assert "no_such_module_here" in problem
    assert {result["status"] for result in document["results"]} == {"checked", "not_runnable"}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "scael"], "did you mean 'scale'"),
        (["--suite", "scale", "--kernel", "scale/plane@1"], "did you mean 'scale/plain@1'"),
        (["--suite", "scale", "--device", "gpu"], "expected auto, cpu, cuda or cuda:N"),
        ([], "no suite selected"),
    ],
)
def test_what_cannot_be_checked_is_a_usage_error(fusebench: Fusebench, arguments: list[str], said: str) -> None:
    outcome = fusebench("check", *arguments)
    assert (outcome.exit_code, said in outcome.stderr, outcome.stdout) == (ExitCode.USAGE, True, ""), outcome.output


def test_end_to_end_a_wrong_kernel_is_found_out_and_its_seed_repeats_the_check(project: Path, fusebench: Fusebench) -> None:
    (project / "kernels" / "scale" / "off.py").write_text(PLAIN.replace("plain", "off").replace("{factor}", "factor + 0.01"))
    outcome = fusebench("check", "--suite", "scale", "--case", "even", "--device", "cpu", "--seed", "11", "--json")
    assert outcome.exit_code == ExitCode.KERNEL_FAILED, outcome.output
    results = {result["kernel"]: result for result in json.loads(outcome.stdout)["results"]}
    assert {kernel: result["status"] for kernel, result in results.items()} == {
        "scale/fast@2": "not_runnable",
        "scale/off@1": "wrong",
        "scale/plain@1": "checked",
        "scale/split@1": "checked",
    }
    assert results["scale/off@1"]["accuracy"]["seed"] == results["scale/plain@1"]["accuracy"]["seed"] == 11
    assert results["scale/off@1"]["reason"]
    assert "[1/1] scale:even" in outcome.stderr, "progress is not on stdout"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_jobs_change_who_checks_and_not_what_is_said(fusebench: Fusebench, answers: Any, jobs: str) -> None:
    answers(Status.CHECKED)
    outcome = fusebench("check", "--suite", "scale", "--device", "cpu", "--jobs", jobs, "--json")
    assert outcome.exit_code == ExitCode.PASS, outcome.output
    results = json.loads(outcome.stdout)["results"]
    assert [(result["case"], result["kernel"]) for result in results] == [
        (case, f"scale/{kernel}") for case in ("even", "odd") for kernel in ("fast@2", "plain@1", "split@1")
    ]
    assert {"[1/2]", "[2/2]"} <= {line.partition(" ")[0] for line in outcome.stderr.splitlines()}, "cases are counted as they are done"
