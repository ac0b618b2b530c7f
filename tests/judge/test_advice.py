"""The command after an evaluation leads on from every status, and quotes what it names."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from fusebench.judge.advice import next_command
from fusebench.schema.evaluation import CaseEvaluation, Evaluation, EvaluationStatus, Stage


def advised(status: str, stage: Stage = Stage.QUICK, *, case: str = "large", options: tuple[str, ...] = (), **changes: Any) -> str:
    found = EvaluationStatus(status)
    cases = (CaseEvaluation(case=case, suite="scale", shape="", status=found),)
    known: dict[str, Any] = {"op": "scale", "kernel": "scale/mine@1", "file": "mine.py", "cases": cases, "first_failure": f"scale:{case}"}
    return next_command(Evaluation(status=found, stage=stage, **known | changes), roots=[Path.cwd() / "kernels"], options=options)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("passed", Stage.CHECK), "fusebench eval mine.py --op scale --stage quick"),
        (("passed", Stage.QUICK), "fusebench eval mine.py --op scale --stage final"),
        (("passed", Stage.FINAL), "cp mine.py kernels/scale && fusebench run --op scale --kernel scale/mine@1"),
        (("wrong", Stage.QUICK), "fusebench eval mine.py --op scale --case scale:large --stage quick"),
        (("unfit", Stage.QUICK), "fusebench doctor"),
    ],
)
def test_each_status_leads_on(asked: tuple[str, Stage], said: str) -> None:
    assert advised(*asked) == said


def test_an_undecided_one_gets_twice_the_time() -> None:
    assert advised("undecided", spent_s=180.2).endswith(" --budget 360 --stage quick")


def test_options_are_kept_and_a_shape_that_only_this_stage_drew_is_not_selected() -> None:
    again = advised("wrong", Stage.FINAL, case="large (unseen shape)", options=("--suite", "my suite"))
    assert again == "fusebench eval mine.py --op scale --suite 'my suite' --stage final"


def test_a_hostile_file_name_is_one_word() -> None:
    hostile = "a'; rm -rf ~ #.py"
    assert shlex.split(advised("passed", file=hostile))[2] == hostile
