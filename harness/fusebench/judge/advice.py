"""The command to run after an evaluation."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..schema.evaluation import CaseEvaluation, Evaluation, EvaluationStatus, Stage

_NEXT_STAGE = {Stage.CHECK: Stage.QUICK, Stage.QUICK: Stage.FINAL}


def next_command(evaluation: Evaluation, *, roots: Sequence[Path], options: tuple[str, ...] = ()) -> str:
    """One line to paste into a shell.

    A candidate that passed goes on to the next stage, and after the last one into the op's folder.  One that failed is judged again on its
    first failing case alone, an undecided one with a larger budget; a device that was unfit is looked at first.

    Args:
        roots: the project's kernel folders; the first takes a candidate that passed every stage.
        options: the other options of the evaluation, such as `--suite`, that the next one keeps.
    """
    status, stage = evaluation.status, evaluation.stage
    file = evaluation.file or "FILE.py"
    again = ["fusebench", "eval", file, "--op", evaluation.op, *options]
    if status is EvaluationStatus.UNFIT:
        return "fusebench doctor"
    if status is EvaluationStatus.PASSED and stage is Stage.FINAL:
        run = shlex.join(["fusebench", "run", "--op", evaluation.op, "--kernel", evaluation.kernel])
        folder = roots[0] / evaluation.op if roots else None
        if folder is None or Path(file).resolve().parent == folder:
            return run
        return f"{shlex.join(['cp', file, os.path.relpath(folder)])} && {run}"
    if status is EvaluationStatus.PASSED:
        return shlex.join([*again, "--stage", _NEXT_STAGE[stage]])
    failing = _first(evaluation)
    if failing is not None and "--case" not in options and _is_selectable(failing):
        again += ["--case", failing.key]
    if status is EvaluationStatus.UNDECIDED:
        again += ["--budget", str(round(max(60.0, 2 * evaluation.spent_s)))]
    return shlex.join([*again, "--stage", stage])


def _first(evaluation: Evaluation) -> CaseEvaluation | None:
    return next((case for case in evaluation.cases if case.key == evaluation.first_failure), None)


def _is_selectable(case: CaseEvaluation) -> bool:
    """Whether the case may stand in a suite; `final` also draws shapes of its own, whose names hold other characters."""
    return all(character.isalnum() or character in "_-./:" for character in case.key)
