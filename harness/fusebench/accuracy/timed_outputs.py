"""Judges outputs of timed calls, which were copied aside right after their calls, by the contract that the kernel was checked by.

A check shows that a kernel can compute the op; only its timed outputs show that it did while the clock ran.  One call is one draw, so an
error near its bound may be luck and accuses no kernel: the check, with as many draws as it needs, has judged it.  A kernel that skips work
when timed, or returns what it computed for other inputs, is wrong by far more (`Pool.may_be_luck`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..registry.kernel import Kernel
from ..registry.op import Buffers, Op
from ..registry.part import Part
from .execution import MalformedError, plain_outputs, run_plain
from .gate import bitwise_target
from .one_draw import differences_from, errors_of, kinds_of_value
from .pool import Pool
from .shared_draws import Draw, draw_of

WRONG_WHEN_TIMED = "right when checked, wrong when timed"


@dataclass(frozen=True)
class TimedCall:
    """One timed call: its inputs, and the outputs that it had left when the clock stopped."""

    kernel: Kernel
    params: Any
    inputs: Hashable
    """Calls of equal `params` and `inputs` had the same values."""
    values: Callable[[], Buffers]
    """The inputs by name, as they were before the call."""
    outputs: tuple[torch.Tensor, ...]
    """Copies of the outputs; empty where `problem` says why there are none."""
    problem: str = ""


class TimedOutputs:
    """The judge of a case's timed calls."""

    def __init__(self, op: Op, *, split: Kernel, others: Callable[[Kernel], Mapping[str, Kernel]]) -> None:
        """
        Args:
            split: the op's split reference.
            others: given a kernel, the kernels by id among which its `bitwise` contract finds its target.
        """
        self._op, self._split, self._others = op, split, others

    def judge(self, calls: Mapping[str, Sequence[TimedCall]]) -> dict[str, str]:
        """By arm, why a timed call was wrong; without arms whose calls were right.

        Inputs, reference and split chain are computed once for all calls on the same inputs, and released before the next.
        """
        groups: dict[Hashable, list[tuple[str, TimedCall]]] = {}
        for arm, made in calls.items():
            for call in made:
                groups.setdefault((repr(call.params), call.inputs, call.kernel.part), []).append((arm, call))
        wrong: dict[str, str] = {}
        for group in groups.values():
            for arm, reason in self._judge_group(group):
                wrong.setdefault(arm, f"{WRONG_WHEN_TIMED}: {reason}")
        return wrong

    def _judge_group(self, group: Sequence[tuple[str, TimedCall]]) -> list[tuple[str, str]]:
        found = [(arm, call.problem) for arm, call in group if call.problem]
        whole = [(arm, call) for arm, call in group if not call.problem]
        if not whole:
            return found
        part: Part | None = whole[0][1].kernel.part
        op, split = (self._op, self._split) if part is None else (part.op_of(self._op), self._split.of_part(part))
        params, buffers = whole[0][1].params, whole[0][1].values()
        draw = draw_of(op, params, buffers, split)
        due: dict[str, tuple[torch.Tensor, ...]] = {}
        for arm, call in whole:
            target = bitwise_target(call.kernel, call.kernel.contract_for(params), split, self._others(call.kernel))
            if target is not None and str(target.id) not in due:
                due[str(target.id)] = draw.split if target is split else run_plain(target, op, params, buffers)
            equal = (target, due[str(target.id)]) if target is not None else None
            if reason := _judged(op.outputs_of(params), call, draw, equal):
                found.append((arm, reason))
        return found


def _judged(names: Sequence[str], call: TimedCall, draw: Draw, equal: tuple[Kernel, tuple[torch.Tensor, ...]] | None) -> str:
    """Why the call's outputs are wrong beyond luck; empty if they are not.

    Args:
        equal: the kernel that the call's must equal bit for bit, with its outputs; None where the contract names none.
    """
    try:
        outputs = plain_outputs(names, call.outputs, draw.split)
    except MalformedError as error:
        return str(error)
    errors = errors_of(names, outputs, draw, look_loosely=False)
    reasons = kinds_of_value(errors)
    if equal is not None:
        reasons += differences_from(equal[0], names, outputs, equal[1])
    pool = Pool(names, call.kernel.contract_for(call.params))
    pool.add(errors)
    if not reasons and (reason := pool.judge()) and not pool.may_be_luck():
        reasons = [reason]
    return "; ".join(reasons)
