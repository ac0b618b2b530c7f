"""What each stage draws: shapes that no other evaluation knows beforehand, numbers of calls, and shares of time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..registry import Op
from ..schema import Case
from ..schema.evaluation import Stage

COMPARED_CALLS = 228
"""Calls over the cases of a stage that find one wrong call in fifty with 99 %: log(0.01) / log(0.98)."""
CHECK_CASES = 4
"""Cases of the stages `check` and `quick`, drawn from those selected."""
QUICK_BYTES = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Largest case, by the bytes that any implementation must move, that `quick` judges by its own choice: values of every timed call travel
between processes, and on a GPU a few cases of this size take half a minute.  On a CPU a call of 100 MB takes two seconds with its
reference in float64, and a case of some hundred calls did not end within the budget: larger ones are cut to this size there (`cut`)."""
_CHECK_TOKENS = (8, 33)
"""Half of the tokens of a sample in a small shape, from fewest to most; one more makes them odd."""
CHECK_BYTES = {"cpu": 1 << 23, "cuda": 1 << 25}
"""Bytes that any implementation must move in the two calls that `check` compares at a shape as long as the case's own."""
WHOLE_BYTES = 1 << 27
"""The same for the two calls of a case that was cut: fewer than 1.5 GB with the references."""
LONGER_CASES = 2
"""Cases that are compared at longer shapes: `check` must answer within seconds, and such a fault seldom depends on the case."""
_MOST_TOKENS = 1 << 20
OTHERS_S: dict[str, dict[Stage, float]] = {"cpu": {Stage.CHECK: 5.0, Stage.QUICK: 15.0}, "cuda": {Stage.CHECK: 1.0, Stage.QUICK: 5.0}}
"""Time for the cases that a stage does not draw, of which it compares some calls at small shapes.  `final` judges all."""
OTHERS_SHARE = 0.25
"""Most that they take of the time that is left."""
QUICK_S = {"cuda": 22.0, "cpu": float("inf")}
"""Seconds that `quick` plans to take, without the start of the command: 30 with it."""
PLANNED_SHARE = 0.75
"""Share of the budget that `quick` and `final` plan to take at most; the rest is for calls that take longer than those before."""
COMPARED_SHARE = 0.5
"""Share of a case's time after which no further call is compared at its own shape; the rest is for times."""
LEAST_OWN = 8
"""Calls compared at a case's own shape whatever they take.  The rest of `COMPARED_CALLS` are compared at a small shape."""
SMALL_CALLS = 8
"""Calls that `quick` and `final` compare at a small shape of a case before its own."""
LAYOUT_CASES = {Stage.CHECK: 1, Stage.QUICK: CHECK_CASES, Stage.FINAL: CHECK_CASES}
"""Cases that are compared in another layout than their own: each may compile a kernel, for which `check` has no time."""
LAYOUT_CALLS = 4
"""Calls that are compared in it."""
_FINAL_ROWS = (0.3, 1.3)
"""Tokens of a shape that only `final` uses, as a share of the case's."""
_EPSILONS = (3e-6, 1e-5, 4e-5, 1e-4)
"""Values of a norm's epsilon that no suite has."""
PAIRS = {Stage.CHECK: 0, Stage.QUICK: 20, Stage.FINAL: 48}
"""Timed batches by the candidate and the baseline each, per case: in turn one of a single call, and one of several."""
MOST_CALLS = 6
"""Calls of a timed batch of several, drawn from 2 to this."""


def planned_s(stage: Stage, device: str, budget_s: float) -> float:
    """Seconds that a stage plans to take of its budget; `check`, whose shapes are small, takes what it takes."""
    if stage is Stage.CHECK:
        return budget_s
    return min(PLANNED_SHARE * budget_s, QUICK_S[device] if stage is Stage.QUICK else budget_s)


def chosen(cases: Sequence[Case], stage: Stage, rng: random.Random, nbytes: Callable[[Case], int], device: str) -> list[Case]:
    """The cases that a stage judges, in the order of the suite.

    Args:
        nbytes: bytes that any implementation of a case must move.
        device: `cpu` or `cuda`.
    """
    if stage is Stage.FINAL or len(cases) <= 1:
        return list(cases)
    fitting = list(cases)
    if stage is Stage.QUICK:
        small_enough = [case for case in cases if nbytes(case) <= QUICK_BYTES[device]]
        fitting = small_enough or [min(cases, key=nbytes)]
    if len(fitting) <= CHECK_CASES:
        return fitting
    places = sorted(rng.sample(range(len(fitting)), CHECK_CASES))
    return [fitting[place] for place in places]


def small(op: Op, params: Any, rng: random.Random) -> Any:
    """The case at a random small number of tokens per sample, an odd one where it has as many: suites' own are mostly multiples of 64."""
    return op.shrink(params, getattr(params, "batch", 1) * (2 * rng.randint(*_CHECK_TOKENS) + 1))


def longer(op: Op, params: Any, stage: Stage, device: str) -> Any:
    """The case at as many of its tokens as a few calls may have; `device` is `cpu` or `cuda`."""
    return _within(op, params, CHECK_BYTES[device] if stage is Stage.CHECK else WHOLE_BYTES)


def cut(op: Op, params: Any, stage: Stage, device: str) -> Any:
    """The case as `quick` and `final` judge it: on a CPU at as many of its tokens as `QUICK_BYTES` allow."""
    return _within(op, params, QUICK_BYTES[device]) if device == "cpu" and stage is not Stage.CHECK else params


def _within(op: Op, params: Any, nbytes: int) -> Any:
    tokens = _MOST_TOKENS
    while op.minimum_bytes(params) > nbytes and tokens > 2 * max(_CHECK_TOKENS):
        params, tokens = op.shrink(params, tokens), tokens // 2
    return params


def unseen(op: Op, params: Any, rng: random.Random) -> Any:
    """The case with another number of tokens and another epsilon, where it has them; the case itself where it has neither."""
    fields = type(params).__struct_fields__
    changes: dict[str, Any] = {}
    for name in op.token_fields:
        if name in fields and getattr(params, name) > 8:
            changes[name] = max(1, round(getattr(params, name) * rng.uniform(*_FINAL_ROWS)))
    if "eps" in fields:
        changes["eps"] = rng.choice([value for value in _EPSILONS if value != params.eps])
    try:
        return msgspec.convert({**msgspec.structs.asdict(params), **changes}, type(params))
    except (ValueError, msgspec.ValidationError):
        return params
