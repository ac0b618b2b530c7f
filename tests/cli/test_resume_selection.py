"""`run --resume ID` needs no further option and refuses another selection; an interruption prints how to go on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fusebench.cli.run_command import require_same_selection, selection_of, show_run
from fusebench.errors import UsageError
from fusebench.runner.session import Outcome
from fusebench.schema import Run
from fusebench.store.run_folder import read_run

BASELINE = Path(__file__).parents[2] / "results" / "baselines" / "nvidia_h200"


@pytest.fixture(scope="module")
def stopped() -> Run:
    run = read_run(BASELINE)
    asked = {"selected": ("smoke",), "selected_op": None, "selected_kernels": "fused_*", "selected_cases": None}
    asked["command"] = "fusebench run --suite smoke --kernel 'fused_*'"
    return msgspec.structs.replace(run, complete=False, suites=[], cases=[], results=[], kernels=[], **asked)


def test_a_stopped_run_knows_its_selection(stopped: Run) -> None:
    suites, op, kernel, case = selection_of(stopped)
    assert (suites, op, kernel, case) == (["smoke"], None, "fused_*", None)
    require_same_selection(stopped, ("smoke",), op, kernel, case)


def test_a_stopped_run_of_a_suite_file_knows_the_path(stopped: Run) -> None:
    command = "fusebench run --suite 'my shapes.toml' --suite=smoke --kernel 'fused_*'"
    suites, *_ = selection_of(msgspec.structs.replace(stopped, command=command, selected=("shapes", "smoke")))
    assert suites == ["my shapes.toml", "smoke"]
    suites, *_ = selection_of(
        msgspec.structs.replace(stopped, command="fusebench run --suite=smoke --suite a=b.toml", selected=("smoke", "b"))
    )
    assert suites == ["smoke", "a=b.toml"], "in the order that the run was asked in"
    suites, *_ = selection_of(msgspec.structs.replace(stopped, command="fusebench run --op qknorm_rope", selected=("qknorm_rope",)))
    assert suites == ["qknorm_rope"], "one that is chosen by its op"


@pytest.mark.parametrize(
    ("suites", "kernel", "expected"),
    [
        (("qknorm_rope",), "fused_*", r"suites smoke -> qknorm_rope; leave the selection out"),
        (("smoke",), None, r"--kernel fused_\* -> none"),
    ],
)
def test_another_selection_is_refused(stopped: Run, suites: tuple[str, ...], kernel: str | None, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        require_same_selection(stopped, suites, None, kernel, None)


def test_an_interruption_prints_how_to_go_on(stopped: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a run"
    folder.mkdir()
    outcome = Outcome(record=stopped, folder=folder, interruption=KeyboardInterrupt(), kept="what was measured is kept")
    with pytest.raises(KeyboardInterrupt):
        show_run(outcome, json=False)
    assert f"go on with it by: {stopped.command} --resume '{folder}'" in capsys.readouterr().err
    again = msgspec.structs.replace(outcome, record=msgspec.structs.replace(stopped, command=f"{stopped.command} --resume 'an older run'"))
    with pytest.raises(KeyboardInterrupt):
        show_run(again, json=False)
    assert f"go on with it by: {stopped.command} --resume '{folder}'" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        show_run(outcome, json=False, resumable=False)
    assert "--resume" not in capsys.readouterr().err
