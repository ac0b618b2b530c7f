"""What a gate says of its margins, and of what its intervals cover.  The one place for these words."""

from __future__ import annotations

import math
from typing import Any

from ...schema import ClassScatter, Reference, Run
from .call_classes import class_words
from .rule import SEVERAL_LAUNCHES, MarginRule, evidence_margin

NEXT_RUN = "intervals hold for the next run on a board of that model"
THESE_PROCESSES = "intervals cover these processes only"
THIS_PROCESS = "intervals cover this process only"


def own_coverage(run: Run) -> str:
    """What the intervals of a run's own times and speedups cover."""
    processes = {result.measurement.processes for result in run.results if result.measurement is not None}
    if processes <= {1}:
        return THIS_PROCESS
    alone = " and, of cases that one process measured, this process only" if 1 in processes else ""
    return f"{THESE_PROCESSES}{alone}: the next run, or another board, may lie outside"


def change_coverage(rule: MarginRule, run: Run) -> str:
    """What the intervals of changes cover that `rule` judges in `run`."""
    return NEXT_RUN if rule.knows(run) else THESE_PROCESSES


def margin_words(rule: MarginRule, run: Run) -> str:
    """The margins in force for `run`, their source, and what the intervals cover."""
    if rule.knows(run) and rule.scatter is not None:
        boards = rule.scatter.boards
        source = f"scatter of {rule.scatter.runs} stored runs on {boards} board{'' if boards == 1 else 's'}; {NEXT_RUN}"
        if rule.fixed is not None:
            return f"margin {100 * rule.fixed:.1f} %, of calls of several launches {100 * (SEVERAL_LAUNCHES * rule.fixed):.1f} %; {source}"
        margins = [f"{100 * evidence_margin(one):.1f} % ({_calls(one)})" for one in _classes(rule)]
        return f"margins {', '.join(margins)}, from the {source}"
    fixed = f"margin {100 * rule.margin:.1f} %, of calls of several launches {100 * (SEVERAL_LAUNCHES * rule.margin):.1f} %"
    why = f"no scatter between runs is stored for {run.environment.device_name}, {run.timer}, {run.plan.cache}"
    return f"{fixed}, fixed: {why} (fusebench history RUNS --scatter); {THESE_PROCESSES}"


def fixed_margin(rule: MarginRule, run: Run) -> float | None:
    """The margin of calls of one launch where it is the same for all; None where it comes from the scatter between runs."""
    return None if rule.fixed is None and rule.knows(run) else rule.margin


def margin_rows(rule: MarginRule, run: Run) -> list[dict[str, Any]]:
    """The margins that come from the scatter between runs, as plain JSON values; empty where the margin is fixed."""
    if fixed_margin(rule, run) is not None:
        return []
    return [
        {
            "several_launches": one.several_launches,
            "low_us": one.low_us,
            "high_us": None if math.isinf(one.high_us) else one.high_us,
            "margin": evidence_margin(one),
        }
        for one in _classes(rule)
    ]


def _classes(rule: MarginRule) -> list[ClassScatter]:
    known = rule.scatter.classes if rule.scatter is not None else ()
    return [one for one in known if one.reference is Reference.MACHINE]


def _calls(one: ClassScatter) -> str:
    return class_words(one.low_us, one.high_us, one.several_launches)
